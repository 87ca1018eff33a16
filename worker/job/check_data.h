// Where a job file's rows come from.

#ifndef SYNCGRADS_WORKER_JOB_CHECK_DATA_H_
#define SYNCGRADS_WORKER_JOB_CHECK_DATA_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "worker/job/field.h"

namespace syncgrads {

// InvalidArgument, with its place, for a source that is missing, given twice, or
// does not make sense. `field` is `data`.
absl::Status CheckData(const v1::DataSpec& data, const Field& field);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_CHECK_DATA_H_
