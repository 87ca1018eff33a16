// The storage that a job's data set is in.

#ifndef SYNCGRADS_WORKER_STORAGE_OPEN_STORAGE_H_
#define SYNCGRADS_WORKER_STORAGE_OPEN_STORAGE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// Where the paths of `job`'s data are: in the data set that it names, or else in
// `directory`, the job file's. `job` is one that ParseJobFile has let pass.
//
// Errors: as FindAwsAccount, and FileCache::Open
absl::StatusOr<std::shared_ptr<const Storage>> OpenStorage(
    const v1::JobFile& job, const std::string& directory,
    const std::function<const char*(const char*)>& getenv);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_STORAGE_OPEN_STORAGE_H_
