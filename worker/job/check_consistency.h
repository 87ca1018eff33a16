// Checks the consistency mode of a job file.

#ifndef SYNCGRADS_WORKER_JOB_CHECK_CONSISTENCY_H_
#define SYNCGRADS_WORKER_JOB_CHECK_CONSISTENCY_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "worker/job/field.h"

namespace syncgrads {

// InvalidArgument, with its place, for a value that is out of range, or that the mode cannot be
// combined with. `root` is the Field of `file`.
absl::Status CheckConsistency(const v1::JobFile& file, const Field& root);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_CHECK_CONSISTENCY_H_
