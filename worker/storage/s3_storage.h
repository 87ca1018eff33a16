// Data sets in Amazon S3, or in a store with the same protocol.

#ifndef SYNCGRADS_WORKER_STORAGE_S3_STORAGE_H_
#define SYNCGRADS_WORKER_STORAGE_S3_STORAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
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
  // The prefix of all keys. A "/" is added to it if it is not empty.
  std::string prefix;
  // Objects are read in parts of this size, several in parallel.
  size_t part_bytes = size_t{8} << 20;
  // Null: there is no cache.
  std::unique_ptr<FileCache> cache;
};

// Reads objects of a bucket. Paths are keys below the prefix; a directory is a common prefix of
// keys that ends in "/". For a cached object, the store is asked once per process whether it is
// unchanged; if so, it is not transferred. Thread-safe.
//
// Errors: those of Storage; Aborted if an object changes while it is read; ResourceExhausted if an
// object is larger than the available memory. All ranges of an object that ReadRange returns are of
// the version of the first one.
class S3Storage : public Storage {
 public:
  explicit S3Storage(S3StorageOptions options);

  absl::StatusOr<std::string> Read(const std::string& path, size_t max_bytes) const override;
  // With a cache, blocks of kBlockBytes are read and kept.
  absl::StatusOr<std::string> ReadRange(const std::string& path, uint64_t offset,
                                        size_t size) const override;
  absl::StatusOr<bool> IsDirectory(const std::string& path) const override;
  absl::StatusOr<std::vector<std::string>> ListDirectories(const std::string& path) const override;
  std::string NameOf(const std::string& path) const override;

 private:
  static constexpr uint64_t kBlockBytes = uint64_t{1} << 20;

  std::string KeyOf(const std::string& path) const;
  // Gets a range of the version of which this process has read other ranges. If there is none yet,
  // and the object still has version `kept`, Part::unchanged is set.
  absl::StatusOr<S3Client::Part> GetRange(const std::string& key, S3Client::Range range,
                                          const std::string& kept) const;
  // Returns a block of an object, from the cache if it is there.
  absl::StatusOr<std::string> ReadBlock(const std::string& key, uint64_t block) const;
  // Gets the object, or returns `kept` if the object still has that version.
  absl::StatusOr<FileCache::Entry> Get(const std::string& key, size_t max_bytes,
                                       std::optional<FileCache::Entry> kept) const;
  // Gets the bytes after the first part into `rest`, with several requests in parallel.
  absl::Status GetRest(const std::string& key, const std::string& version,
                       absl::Span<char> rest) const;
  // The version of which this process has read ranges; empty if there is none.
  std::string VersionOf(const std::string& key) const;
  // Whether this process has found that `version` of the object is current.
  bool IsFresh(const std::string& key, const std::string& version) const;
  void SetFresh(const std::string& key, const std::string& version) const;

  const std::string prefix_;
  const size_t part_bytes_;
  const std::unique_ptr<FileCache> cache_;
  const S3Client client_;

  mutable Mutex mutex_;
  // Of objects that Read returns: hashes of keys with the versions that this process has found to
  // be current. These objects may be millions of images: a hash takes 8 bytes, the strings more
  // than 100. The cache may still have an older version, if the current one could not be written.
  mutable absl::flat_hash_set<size_t> fresh_ ABSL_GUARDED_BY(mutex_);
  // Of objects that ReadRange returns parts of, which are a few large ones: by key, the version of
  // which this process has read ranges. It is sent with the requests for further ranges.
  mutable absl::flat_hash_map<std::string, std::string> versions_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_STORAGE_S3_STORAGE_H_
