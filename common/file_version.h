// Tells whether a file has changed.

#ifndef SYNCGRADS_COMMON_FILE_VERSION_H_
#define SYNCGRADS_COMMON_FILE_VERSION_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <string>

#include "absl/time/time.h"

namespace syncgrads {

// Differs after a file was written, replaced by another one, or given another owner or mode.
struct FileVersion {
  FileVersion() = default;
  explicit FileVersion(const struct stat& status)
      : device(status.st_dev),
        inode(status.st_ino),
        size(status.st_size),
        modified(absl::TimeFromTimespec(status.st_mtim)),
        changed(absl::TimeFromTimespec(status.st_ctim)) {}
  // That of the file at `path` now. If there is none, the version of no file.
  static FileVersion At(const std::string& path) {
    struct stat status = {};
    return stat(path.c_str(), &status) == 0 ? FileVersion(status) : FileVersion();
  }
  friend bool operator==(const FileVersion&, const FileVersion&) = default;

  dev_t device = 0;
  ino_t inode = 0;
  off_t size = 0;
  absl::Time modified;
  // Also changes with the owner and the mode.
  absl::Time changed;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_FILE_VERSION_H_
