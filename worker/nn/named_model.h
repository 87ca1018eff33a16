// Models that a job file names instead of listing their layers.

#ifndef SYNCGRADS_WORKER_NN_NAMED_MODEL_H_
#define SYNCGRADS_WORKER_NN_NAMED_MODEL_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace syncgrads {

// The names that there are, separated by commas.
std::string NamesOfModels();

// The layers of the model `named`, see proto/job.proto. InvalidArgument if there is
// none of its name; names those there are.
absl::StatusOr<v1::ModelSpec> ExpandNamedModel(const v1::NamedModel& named);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_NAMED_MODEL_H_
