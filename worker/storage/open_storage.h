// Opens the storage of a job's data.

#ifndef SYNCGRADS_WORKER_STORAGE_OPEN_STORAGE_H_
#define SYNCGRADS_WORKER_STORAGE_OPEN_STORAGE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "worker/storage/storage.h"

namespace syncgrads {

// Returns the storage of the paths in `job`'s data: the data set that the job names or, without
// one, `directory`, which is that of the job file. `job` must have passed ParseJobFile.
//
// Errors: those of FindAwsCredentials, FindAwsRegion and FileCache::Open.
absl::StatusOr<std::shared_ptr<const Storage>> OpenStorage(
    const v1::JobFile& job, const std::string& directory,
    const std::function<const char*(const char*)>& getenv);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_STORAGE_OPEN_STORAGE_H_
