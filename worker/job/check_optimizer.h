// Checks the job file's fields that determine how parameters are updated.

#ifndef SYNCGRADS_WORKER_JOB_CHECK_OPTIMIZER_H_
#define SYNCGRADS_WORKER_JOB_CHECK_OPTIMIZER_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "worker/job/field.h"

namespace syncgrads {

// Checks optimizer, optimizer_placement, schedule, parameter_rules, decay_kernels_only,
// gradient_reduction and ema.
//
// Errors:
//   InvalidArgument  one is missing or wrong; the message has its place and its value
absl::Status CheckOptimizer(const v1::JobFile& file, const Field& root);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_CHECK_OPTIMIZER_H_
