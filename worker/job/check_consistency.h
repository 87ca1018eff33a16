// What a job file says of how its workers are kept together.

#ifndef SYNCGRADS_WORKER_JOB_CHECK_CONSISTENCY_H_
#define SYNCGRADS_WORKER_JOB_CHECK_CONSISTENCY_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "worker/job/field.h"

namespace syncgrads {

// InvalidArgument, with its place, for values that are out of range, and for what
// the mode cannot be combined with. `root` is `file`.
absl::Status CheckConsistency(const v1::JobFile& file, const Field& root);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_CHECK_CONSISTENCY_H_
