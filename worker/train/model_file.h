// A model in a file: its parameters and states, and what its classes are called.

#ifndef SYNCGRADS_WORKER_TRAIN_MODEL_FILE_H_
#define SYNCGRADS_WORKER_TRAIN_MODEL_FILE_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/io/safetensors.h"
#include "worker/nn/model.h"
#include "worker/train/classes.h"

namespace syncgrads {

// What a model's file says beside its tensors. `job` is the job's name.
std::map<std::string, std::string> ModelMetadata(const std::optional<Classes>& classes,
                                                 const std::string& job);

// What a model's file has: its states, and its parameters.
template <typename T>
std::vector<Parameter<T>*> TensorsOf(const Model<T>& model);

// Writes the safetensors file `path`, as a whole or not at all. Errors: as WriteSafetensors,
// or Model::FetchStates.
template <typename T>
absl::Status SaveModel(Model<T>& model, const std::optional<Classes>& classes,
                       const std::string& job, const std::string& path);

// Sets the model's parameters and states to those of `file`, which must have the
// model's dtype. What else the file has is not looked at.
//
// Errors: as Safetensors::Find, or Model::Upload.
template <typename T>
absl::Status LoadModel(const Safetensors& file, Model<T>& model);

// The classes that SaveModel wrote; none if there are none in the file.
// DataLoss if they are not as SaveModel writes them.
absl::StatusOr<std::optional<Classes>> LoadClasses(const Safetensors& file);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_MODEL_FILE_H_
