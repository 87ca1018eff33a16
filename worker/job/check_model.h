// The model of a job file, and its loss.

#ifndef SYNCGRADS_WORKER_JOB_CHECK_MODEL_H_
#define SYNCGRADS_WORKER_JOB_CHECK_MODEL_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "worker/job/field.h"

namespace syncgrads {

// InvalidArgument, with its place, for a model that could not be built whatever the
// rows are. `field` is `model`.
absl::Status CheckModel(const v1::ModelSpec& model, const Field& field);

// InvalidArgument, with its place, for a loss that is none, or that the outputs of
// `model` do not fit. `field` is `loss`.
absl::Status CheckLoss(const v1::LossSpec& loss, const v1::ModelSpec& model, const Field& field,
                       const Field& model_field);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_CHECK_MODEL_H_
