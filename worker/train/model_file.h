// Saves and loads a model: its parameters, its layer states, and the names of its
// classes.

#ifndef SYNCGRADS_WORKER_TRAIN_MODEL_FILE_H_
#define SYNCGRADS_WORKER_TRAIN_MODEL_FILE_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/classes.h"
#include "worker/io/safetensors.h"
#include "worker/nn/models/model.h"

namespace syncgrads {

// Returns the metadata of a model's file. `job` is the job's name, `shards` the number of shards of
// the data that the model is trained on; 0 if it is not known.
std::map<std::string, std::string> ModelMetadata(const std::optional<Classes>& classes,
                                                 uint32_t shards, const std::string& job);

// Returns the tensors of a model's file: layer states first, then frozen parameters, then the
// parameters that are trained.
template <typename T>
std::vector<Parameter<T>*> TensorsOf(const Model<T>& model);

// Writes the model's values on the host to the safetensors file `path`, completely or not
// at all; fetches only the layer states from the device. Errors: those of
// WriteSafetensors, or of Model::FetchStates.
template <typename T>
absl::Status SaveModel(Model<T>& model, const std::optional<Classes>& classes, uint32_t shards,
                       const std::string& job, const std::string& path);

// Which of the model's arrays LoadModel leaves as they are.
struct PartialLoad {
  // Names of arrays; * matches any characters.
  std::vector<std::string> skip;
  // Leaves arrays that the file does not have.
  bool allow_missing = false;
};

// Sets the model's parameters and states from `file`, which must have the model's dtype, and
// uploads them. Ignores other tensors in the file. Returns the names of the arrays that it has left
// as they were.
//
// Errors:
//   InvalidArgument  a name of `partial.skip` matches no array of the model; or with allow_missing,
//                    the file has none of the model's arrays
//   others           those of Safetensors::Find, or of Model::Upload
template <typename T>
absl::StatusOr<std::vector<std::string>> LoadModel(const Safetensors& file, Model<T>& model,
                                                   const PartialLoad& partial = PartialLoad());

// Returns the classes that SaveModel wrote; nullopt if the file has none. Errors:
// DataLoss if a name is not in the form that SaveModel writes.
absl::StatusOr<std::optional<Classes>> LoadClasses(const Safetensors& file);

// Returns the number of shards that SaveModel wrote; 0 if the file has none. Errors: DataLoss if it
// is not a positive number.
absl::StatusOr<uint32_t> LoadShardCount(const Safetensors& file);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_MODEL_FILE_H_
