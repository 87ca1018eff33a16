// The named data sets of a job file.

#ifndef SYNCGRADS_WORKER_JOB_CHECK_DATA_SETS_H_
#define SYNCGRADS_WORKER_JOB_CHECK_DATA_SETS_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "worker/job/field.h"

namespace syncgrads {

// InvalidArgument, with its place, for one without a name, a place or a bucket, with
// a name that another has, or with an endpoint that is no URL; and if data.set names
// none of them. `root` is `file`.
absl::Status CheckDataSets(const v1::JobFile& file, const Field& root);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_CHECK_DATA_SETS_H_
