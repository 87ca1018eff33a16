// The checks of a job file that need only the file.

#ifndef SYNCGRADS_WORKER_JOB_CHECK_H_
#define SYNCGRADS_WORKER_JOB_CHECK_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "worker/job/field.h"

namespace syncgrads {

// Checks `file`; `root` is its Field. InvalidArgument for the first value that is missing, out
// of range, or in conflict with another value. proto/job.proto describes what is valid.
absl::Status CheckJobFile(const v1::JobFile& file, const Field& root);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_CHECK_H_
