// Copies of what is far away, in files.

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

// One directory, which several processes may share. What has not been used for
// longest goes first. Losing a file costs only time, so nothing is synced; one that
// is damaged is found by its checksum and counts as lost. Thread-safe.
class FileCache {
 public:
  // Makes the directory if it is not there. Each process that shares it lets it
  // grow past `max_bytes` by a sixteenth of that at most.
  //
  // Errors: Internal, in the system's words, if the directory cannot be made.
  static absl::StatusOr<std::unique_ptr<FileCache>> Open(const std::string& directory,
                                                         uint64_t max_bytes);

  struct Entry {
    // Which version of the contents it is, in the words of where they are from.
    std::string version;
    std::string contents;
  };
  std::optional<Entry> Find(const std::string& key) const;

  // What cannot be written is not kept; what is larger than the cache is not either.
  void Keep(const std::string& key, absl::string_view version, absl::string_view contents);

 private:
  FileCache(std::string directory, uint64_t max_bytes)
      : directory_(std::move(directory)), max_bytes_(max_bytes) {}

  std::string PathOf(const std::string& key) const;
  // Removes files, the oldest first, until there is room.
  void Shrink();

  const std::string directory_;
  const uint64_t max_bytes_;
  Mutex mutex_;
  // By this process since it last looked at the whole directory.
  uint64_t written_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_STORAGE_FILE_CACHE_H_
