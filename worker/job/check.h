// The checks of a job file that need nothing but the file.

#ifndef SYNCGRADS_WORKER_JOB_CHECK_H_
#define SYNCGRADS_WORKER_JOB_CHECK_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "worker/job/field.h"

namespace syncgrads {

// `root` is the field for `file` as a whole. InvalidArgument for the first thing
// that is missing, out of range, or at odds with another; see proto/job.proto.
absl::Status CheckJobFile(const v1::JobFile& file, const Field& root);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_CHECK_H_
