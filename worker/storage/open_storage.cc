#include "worker/storage/open_storage.h"

#include <utility>

#include "common/status_macros.h"
#include "worker/base/file.h"
#include "worker/storage/aws_account.h"
#include "worker/storage/file_cache.h"
#include "worker/storage/file_storage.h"
#include "worker/storage/s3_storage.h"

namespace syncgrads {
namespace {

constexpr uint64_t kCacheBytes = uint64_t{16} << 30;

using GetEnv = std::function<const char*(const char*)>;

absl::StatusOr<std::shared_ptr<const Storage>> OpenBucket(const v1::S3Bucket& bucket,
                                                          const std::string& directory,
                                                          const GetEnv& getenv) {
  S3StorageOptions options;
  options.prefix = bucket.prefix();
  options.s3.bucket = bucket.bucket();
  SYNCGRADS_ASSIGN_OR_RETURN(const AwsRegion place, FindAwsRegion(bucket.profile(), getenv));
  options.s3.region = bucket.region().empty() ? place.region : bucket.region();
  options.s3.endpoint = bucket.endpoint().empty() ? place.endpoint : bucket.endpoint();
  if (!bucket.anonymous()) {
    SYNCGRADS_ASSIGN_OR_RETURN(options.s3.credentials,
                               FindAwsCredentials(bucket.profile(), getenv));
  }
  if (!bucket.cache().empty()) {
    SYNCGRADS_ASSIGN_OR_RETURN(
        options.cache,
        FileCache::Open(PathFrom(directory, bucket.cache()),
                        bucket.cache_bytes() == 0 ? kCacheBytes : bucket.cache_bytes()));
  }
  return std::make_shared<S3Storage>(std::move(options));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Storage>> OpenStorage(const v1::JobFile& job,
                                                           const std::string& directory,
                                                           const GetEnv& getenv) {
  for (const v1::NamedDataSet& set : job.data_sets()) {
    if (set.name() != job.data().set()) continue;
    if (set.has_s3()) return OpenBucket(set.s3(), directory, getenv);
    return std::make_shared<FileStorage>(PathFrom(directory, set.directory()));
  }
  return std::make_shared<FileStorage>(directory);
}

}  // namespace syncgrads
