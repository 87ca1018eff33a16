// Checks the named data sets of a job file.

#ifndef SYNCGRADS_WORKER_JOB_CHECK_DATA_SETS_H_
#define SYNCGRADS_WORKER_JOB_CHECK_DATA_SETS_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "worker/job/field.h"

namespace syncgrads {

// InvalidArgument, with its place, for a data set without a name, a place or a bucket, with the
// name of another one, or with an endpoint that is not a URL; for an invalid address in
// data.served_from; and if data.set or validation.data.set names none of the data sets. `root` is
// the Field of `file`.
absl::Status CheckDataSets(const v1::JobFile& file, const Field& root);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_CHECK_DATA_SETS_H_
