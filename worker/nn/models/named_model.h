// Built-in models, which a job file names instead of listing their layers.

#ifndef SYNCGRADS_WORKER_NN_MODELS_NAMED_MODEL_H_
#define SYNCGRADS_WORKER_NN_MODELS_NAMED_MODEL_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace syncgrads {

// Returns the names of the built-in models, separated by commas.
std::string NamesOfModels();

// Returns the layers of the built-in model `named`, which proto/job.proto describes.
// InvalidArgument if there is no model of that name; the message has the names of all.
absl::StatusOr<v1::ModelSpec> ExpandNamedModel(const v1::NamedModel& named);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_MODELS_NAMED_MODEL_H_
