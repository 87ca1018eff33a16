// Checks the data source of a job file.

#ifndef SYNCGRADS_WORKER_JOB_CHECK_DATA_H_
#define SYNCGRADS_WORKER_JOB_CHECK_DATA_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "worker/job/field.h"

namespace syncgrads {

// InvalidArgument, with its place, for a source that is missing, contradictory or invalid.
// `field` is the Field of `data`.
absl::Status CheckData(const v1::DataSpec& data, const Field& field);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_CHECK_DATA_H_
