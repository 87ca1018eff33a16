#include "worker/checkpoint/snapshot.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/io/safetensors.h"

namespace syncgrads {
namespace {

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kTrainingFile = "training.safetensors";

std::vector<StoredTensor> Stored(const std::vector<SavedTensor>& tensors) {
  std::vector<StoredTensor> stored;
  for (const SavedTensor& tensor : tensors) stored.push_back({tensor.spec, tensor.bytes});
  return stored;
}

CheckpointFile FileOf(const char* name, const std::string& header,
                      const std::vector<SavedTensor>& tensors) {
  CheckpointFile file{name, {header}};
  for (const SavedTensor& tensor : tensors) file.pieces.push_back(tensor.bytes);
  return file;
}

absl::StatusOr<Safetensors> Parse(Checkpoint& checkpoint, const char* name) {
  const std::string path = absl::StrCat(checkpoint.path, "/", name);
  const auto found = checkpoint.files.find(name);
  if (found == checkpoint.files.end()) {
    return absl::DataLossError(absl::StrCat(path, " is not in the checkpoint's manifest"));
  }
  return Safetensors::Parse(std::move(found->second), path);
}

absl::StatusOr<std::vector<SavedTensor>> TensorsOf(const Safetensors& file) {
  std::vector<SavedTensor> tensors;
  for (const TensorSpec& spec : file.specs()) {
    SYNCGRADS_ASSIGN_OR_RETURN(const absl::string_view bytes, file.Find(spec));
    tensors.push_back({spec, std::string(bytes)});
  }
  return tensors;
}

}  // namespace

SavedTensor CopyOf(TensorSpec spec, const void* data) {
  const size_t bytes = spec.bytes();
  return {std::move(spec), std::string(static_cast<const char*>(data), bytes)};
}

const SavedTensor* Snapshot::FindNamed(absl::string_view name) const {
  for (const std::vector<SavedTensor>* tensors : {&model, &training}) {
    for (const SavedTensor& tensor : *tensors) {
      if (tensor.spec.name == name) return &tensor;
    }
  }
  return nullptr;
}

absl::StatusOr<absl::string_view> Snapshot::Find(const TensorSpec& expected) const {
  const SavedTensor* found = FindNamed(expected.name);
  const std::string which =
      absl::StrCat("the state after step ", manifest.step, " of job \"", manifest.job, "\"");
  if (found == nullptr) {
    return absl::NotFoundError(absl::StrCat(which, " has no tensor \"", expected.name, "\""));
  }
  if (!(found->spec == expected)) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", expected.name, "\" of ", which,
                                                   " is ", ToString(found->spec),
                                                   ", but the job's is ", ToString(expected)));
  }
  return absl::string_view(found->bytes);
}

absl::StatusOr<std::string> WriteSnapshot(const Snapshot& snapshot,
                                          CheckpointDirectory& directory) {
  const std::string model = SafetensorsHeader(Stored(snapshot.model), snapshot.model_metadata);
  const std::string training = SafetensorsHeader(Stored(snapshot.training), {});
  return directory.Write(snapshot.manifest, {FileOf(kModelFile, model, snapshot.model),
                                             FileOf(kTrainingFile, training, snapshot.training)});
}

absl::StatusOr<Snapshot> SnapshotOf(Checkpoint checkpoint) {
  Snapshot snapshot;
  snapshot.manifest = checkpoint.manifest;
  SYNCGRADS_ASSIGN_OR_RETURN(const Safetensors model, Parse(checkpoint, kModelFile));
  SYNCGRADS_ASSIGN_OR_RETURN(const Safetensors training, Parse(checkpoint, kTrainingFile));
  snapshot.model_metadata = model.metadata();
  SYNCGRADS_ASSIGN_OR_RETURN(snapshot.model, TensorsOf(model));
  SYNCGRADS_ASSIGN_OR_RETURN(snapshot.training, TensorsOf(training));
  return snapshot;
}

}  // namespace syncgrads
