// Checks a job file's validation and its early stopping.

#ifndef SYNCGRADS_WORKER_JOB_CHECK_VALIDATION_H_
#define SYNCGRADS_WORKER_JOB_CHECK_VALIDATION_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "worker/job/field.h"

namespace syncgrads {

// InvalidArgument, with its place, for a validation without rows or with wrong values, and for
// early stopping without a validation. `root` is the Field of the whole file, whose model and loss
// are valid.
absl::Status CheckValidation(const v1::JobFile& file, const Field& root);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_CHECK_VALIDATION_H_
