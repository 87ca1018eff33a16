// A cache of remote files, in a local directory.

#ifndef SYNCGRADS_WORKER_STORAGE_FILE_CACHE_H_
#define SYNCGRADS_WORKER_STORAGE_FILE_CACHE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"

namespace syncgrads {

// A cache in one directory, which several processes may share. The least recently used files are
// removed first. The loss of a file costs only time, so files are not synced. A damaged file is
// detected by its checksum and treated as lost. Thread-safe.
class FileCache {
 public:
  // Creates the directory if it does not exist. The cache may grow past `max_bytes`: for each
  // process that shares it, by a sixteenth of `max_bytes` and one file.
  //
  // Errors: Internal, with the system's message, if the directory cannot be created.
  static absl::StatusOr<std::unique_ptr<FileCache>> Open(const std::string& directory,
                                                         uint64_t max_bytes);

  struct Entry {
    // The version of the contents, in the form that their source uses.
    std::string version;
    std::string contents;
  };
  // Returns nullopt if there is no valid entry for `key`. Marks the entry as recently used.
  std::optional<Entry> Find(const std::string& key) const;

  // Writes an entry. If it cannot be written, or is larger than the cache, the call does
  // nothing: an older entry for `key` stays.
  void Keep(const std::string& key, absl::string_view version, absl::string_view contents);

 private:
  FileCache(std::string directory, uint64_t max_bytes)
      : directory_(std::move(directory)), max_bytes_(max_bytes) {}

  std::string PathOf(const std::string& key) const;
  // Removes unfinished files of writers that were killed, and then files, the least recently used
  // first, until there is room.
  void Shrink();

  const std::string directory_;
  const uint64_t max_bytes_;
  Mutex mutex_;
  // Bytes that this process has written since it last scanned the directory.
  uint64_t written_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_STORAGE_FILE_CACHE_H_
