// Checks the model and the loss of a job file.

#ifndef SYNCGRADS_WORKER_JOB_CHECK_MODEL_H_
#define SYNCGRADS_WORKER_JOB_CHECK_MODEL_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "worker/job/field.h"

namespace syncgrads {

// InvalidArgument, with its place, for a model that cannot be built, whatever the data is.
// `field` is the Field of `model`.
absl::Status CheckModel(const v1::ModelSpec& model, const Field& field);

// InvalidArgument, with its place, for an invalid loss, or one that needs another number of
// outputs than `model` has, or other targets than those of `data`. `field` is the Field of `loss`.
absl::Status CheckLoss(const v1::LossSpec& loss, const v1::ModelSpec& model,
                       const v1::DataSpec& data, const Field& field, const Field& model_field);

// Whether the targets of a job with this loss are numbers, and not classes.
bool HasNumbers(const v1::LossSpec& loss);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_CHECK_MODEL_H_
