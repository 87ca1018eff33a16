// Data sets in Amazon S3, or a store that speaks its protocol.

#ifndef SYNCGRADS_WORKER_STORAGE_S3_STORAGE_H_
#define SYNCGRADS_WORKER_STORAGE_S3_STORAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/mutex.h"
#include "worker/storage/file_cache.h"
#include "worker/storage/s3_client.h"
#include "worker/storage/storage.h"

namespace syncgrads {

struct S3StorageOptions {
  S3Options s3;
  // What all keys begin with; a "/" follows it if it is not empty.
  std::string prefix;
  // An object is asked for in parts of so many bytes, a few at a time.
  size_t part_bytes = size_t{8} << 20;
  // Null: nothing is kept.
  std::unique_ptr<FileCache> cache;
};

// Paths are keys below the prefix; a directory is what keys have in common up to a
// "/". What is in the cache is not transferred again if, once per process, the store
// says that it is unchanged. Thread-safe.
//
// Errors: also Aborted if an object changes while it is read.
class S3Storage : public Storage {
 public:
  explicit S3Storage(S3StorageOptions options);

  absl::StatusOr<std::string> Read(const std::string& path, size_t max_bytes) const override;
  absl::StatusOr<bool> IsDirectory(const std::string& path) const override;
  absl::StatusOr<std::vector<std::string>> ListDirectories(const std::string& path) const override;
  std::string NameOf(const std::string& path) const override;

 private:
  std::string KeyOf(const std::string& path) const;
  // The object, or `kept` if that is its version still.
  absl::StatusOr<FileCache::Entry> Get(const std::string& key, size_t max_bytes,
                                       std::optional<FileCache::Entry> kept) const;
  // Gets what follows the first part into `rest`.
  absl::Status GetRest(const std::string& key, const std::string& version,
                       absl::Span<char> rest) const;
  bool IsFresh(const std::string& key) const;
  void SetFresh(const std::string& key) const;

  const std::string prefix_;
  const size_t part_bytes_;
  const std::unique_ptr<FileCache> cache_;
  const S3Client client_;

  mutable Mutex mutex_;
  // Hashes of keys that this process knows to be unchanged in the cache.
  mutable absl::flat_hash_set<size_t> fresh_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_STORAGE_S3_STORAGE_H_
