// The state of a training run after a step: in memory, and as the files of a checkpoint.
//
//   model.safetensors     parameters and layer states, as ps-worker --output writes them
//   training.safetensors  the other state that a resumed run needs: optimizer slots,
//                         counters, and in data mode DYNAMIC the data position

#ifndef SYNCGRADS_WORKER_CHECKPOINT_SNAPSHOT_H_
#define SYNCGRADS_WORKER_CHECKPOINT_SNAPSHOT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/group/layout.h"
#include "worker/checkpoint/checkpoint_directory.h"
#include "worker/checkpoint/manifest.h"

namespace syncgrads {

// A tensor and its values.
struct SavedTensor {
  TensorSpec spec;
  // The length is spec.bytes().
  std::string bytes;
};

// Copies a tensor. `data` has spec.bytes() bytes.
SavedTensor CopyOf(TensorSpec spec, const void* data);

// The state after step manifest.step.
struct Snapshot {
  Manifest manifest;
  std::map<std::string, std::string> model_metadata;
  // Each tensor name occurs once in `model` and `training` together.
  std::vector<SavedTensor> model;
  std::vector<SavedTensor> training;

  // Returns the tensor of this name; nullptr if there is none.
  const SavedTensor* FindNamed(absl::string_view name) const;
  // Returns the bytes of the tensor that `expected` describes; the snapshot owns them.
  //
  // Errors:
  //   NotFound         there is no tensor of that name
  //   InvalidArgument  the tensor has another dtype or shape; names both
  absl::StatusOr<absl::string_view> Find(const TensorSpec& expected) const;
};

// Writes the snapshot as a checkpoint and returns its path. Errors: those of
// CheckpointDirectory::Write.
absl::StatusOr<std::string> WriteSnapshot(const Snapshot& snapshot, CheckpointDirectory& directory);

// Parses the files of a checkpoint. Errors: DataLoss, which names the file, if one of the
// two is missing or is not a safetensors file.
absl::StatusOr<Snapshot> SnapshotOf(Checkpoint checkpoint);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_CHECKPOINT_SNAPSHOT_H_
