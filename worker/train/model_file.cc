#include "worker/train/model_file.h"

#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "worker/base/name_pattern.h"

namespace syncgrads {
namespace {

// The class names, one per line, escaped as in C so that a name may have any bytes.
constexpr const char* kClasses = "classes";
constexpr const char* kJob = "job";
constexpr const char* kShards = "shards";

}  // namespace

std::map<std::string, std::string> ModelMetadata(const std::optional<Classes>& classes,
                                                 uint32_t shards, const std::string& job) {
  std::map<std::string, std::string> metadata = {{kJob, job}};
  if (shards > 0) metadata[kShards] = absl::StrCat(shards);
  if (classes.has_value()) {
    std::vector<std::string> lines;
    for (const std::string& name : classes->names()) lines.push_back(absl::CHexEscape(name));
    metadata[kClasses] = absl::StrJoin(lines, "\n");
  }
  return metadata;
}

template <typename T>
std::vector<Parameter<T>*> TensorsOf(const Model<T>& model) {
  std::vector<Parameter<T>*> tensors(model.states().begin(), model.states().end());
  tensors.insert(tensors.end(), model.frozen().begin(), model.frozen().end());
  tensors.insert(tensors.end(), model.parameters().begin(), model.parameters().end());
  return tensors;
}

template <typename T>
absl::Status SaveModel(Model<T>& model, const std::optional<Classes>& classes, uint32_t shards,
                       const std::string& job, const std::string& path) {
  SYNCGRADS_RETURN_IF_ERROR(model.FetchStates());
  std::vector<StoredTensor> tensors;
  for (const Parameter<T>* parameter : TensorsOf(model)) {
    tensors.push_back({parameter->spec(),
                       absl::string_view(reinterpret_cast<const char*>(parameter->values.data()),
                                         parameter->bytes())});
  }
  return WriteSafetensors(path, tensors, ModelMetadata(classes, shards, job));
}

template <typename T>
absl::StatusOr<std::vector<std::string>> LoadModel(const Safetensors& file, Model<T>& model,
                                                   const PartialLoad& partial) {
  const std::vector<Parameter<T>*> tensors = TensorsOf(model);
  std::set<std::string> skipped;
  for (const std::string& pattern : partial.skip) {
    bool matches = false;
    for (const Parameter<T>* tensor : tensors) {
      if (!MatchesName(pattern, tensor->name)) continue;
      matches = true;
      skipped.insert(tensor->name);
    }
    if (!matches) {
      return absl::InvalidArgumentError(
          absl::StrCat("model.init_skip has \"", pattern,
                       "\", but the model has no parameter or state with this name; its last is \"",
                       tensors.back()->name, "\""));
    }
  }
  std::vector<std::string> left;
  for (Parameter<T>* tensor : tensors) {
    const absl::StatusOr<absl::string_view> bytes = file.Find(tensor->spec());
    const bool missing = partial.allow_missing && absl::IsNotFound(bytes.status());
    if (missing || skipped.contains(tensor->name)) {
      left.push_back(tensor->name);
      continue;
    }
    SYNCGRADS_RETURN_IF_ERROR(bytes.status());
    std::memcpy(tensor->values.data(), bytes->data(), bytes->size());
  }
  if (left.size() == tensors.size()) {
    return absl::InvalidArgumentError(absl::StrCat("none of the model's ", tensors.size(),
                                                   " arrays is taken from the file; the "
                                                   "first is \"",
                                                   tensors.front()->name, "\""));
  }
  SYNCGRADS_RETURN_IF_ERROR(model.Upload());
  return left;
}

absl::StatusOr<std::optional<Classes>> LoadClasses(const Safetensors& file) {
  const auto it = file.metadata().find(kClasses);
  if (it == file.metadata().end()) return std::optional<Classes>();
  std::vector<std::string> names;
  for (const absl::string_view line : absl::StrSplit(it->second, '\n', absl::SkipEmpty())) {
    std::string name;
    if (!absl::CUnescape(line, &name)) {
      return absl::DataLossError(absl::StrCat("malformed class name in the file: ", line));
    }
    names.push_back(std::move(name));
  }
  return std::optional<Classes>(Classes::Named(std::move(names)));
}

absl::StatusOr<uint32_t> LoadShardCount(const Safetensors& file) {
  const auto it = file.metadata().find(kShards);
  if (it == file.metadata().end()) return 0;
  uint32_t shards = 0;
  if (!absl::SimpleAtoi(it->second, &shards) || shards == 0) {
    return absl::DataLossError(
        absl::StrCat("malformed number of shards in the file: \"", it->second, "\""));
  }
  return shards;
}

template std::vector<Parameter<float>*> TensorsOf(const Model<float>&);
template std::vector<Parameter<double>*> TensorsOf(const Model<double>&);
template absl::Status SaveModel(Model<float>&, const std::optional<Classes>&, uint32_t,
                                const std::string&, const std::string&);
template absl::Status SaveModel(Model<double>&, const std::optional<Classes>&, uint32_t,
                                const std::string&, const std::string&);
template absl::StatusOr<std::vector<std::string>> LoadModel(const Safetensors&, Model<float>&,
                                                            const PartialLoad&);
template absl::StatusOr<std::vector<std::string>> LoadModel(const Safetensors&, Model<double>&,
                                                            const PartialLoad&);

}  // namespace syncgrads
