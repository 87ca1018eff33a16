// Reads files that others may replace while this process runs.

#ifndef SYNCGRADS_COMMON_REGULAR_FILE_H_
#define SYNCGRADS_COMMON_REGULAR_FILE_H_

#include <sys/stat.h>

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/file_descriptor.h"

namespace syncgrads {

// A regular file, open for reading. Thread-compatible. The messages of errors have the reason only,
// without the path.
class RegularFile {
 public:
  // Never waits, whatever lies at `path`; a pipe, for example, would wait for its other end.
  //
  // Errors:
  //   NotFound            there is no such file
  //   PermissionDenied    reading it is not permitted
  //   FailedPrecondition  it is not a regular file, or cannot be opened
  static absl::StatusOr<RegularFile> Open(const std::string& path);

  // What it was when it was opened: another file may have taken its place since.
  const struct stat& attributes() const { return attributes_; }

  // Returns all of it.
  //
  // Errors:
  //   FailedPrecondition  it has more than `most_bytes`, also if it grows while it is read; or it
  //                       cannot be read
  absl::StatusOr<std::string> Read(size_t most_bytes) const;

 private:
  RegularFile(FileDescriptor file, const struct stat& attributes)
      : file_(std::move(file)), attributes_(attributes) {}

  FileDescriptor file_;
  struct stat attributes_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_REGULAR_FILE_H_
