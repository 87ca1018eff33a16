// A file that grows while a worker trains.

#ifndef SYNCGRADS_WORKER_BASE_LOG_FILE_H_
#define SYNCGRADS_WORKER_BASE_LOG_FILE_H_

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/file_descriptor.h"

namespace syncgrads {

// Writes records, for example lines, one at a time, without a buffer. Several processes may append
// to the same file. If a record cannot be written, for example because the disk is full, it is left
// out, and later ones are tried again. Movable. Not thread-safe.
class LogFile {
 public:
  // Receives a message about the first record that could not be written. May be null.
  using Warn = std::function<void(const std::string&)>;
  enum class Existing { kContinued, kReplaced };

  // Opens the file, or creates it. `what` is what messages call it: "event log".
  //
  // Errors:
  //   PermissionDenied  the file cannot be opened, for whatever reason
  static absl::StatusOr<LogFile> Open(const std::string& path, const std::string& what,
                                      Existing existing, Warn warn);

  // Writes a record. A reader finds it completely or not at all, unless the process is killed
  // during the write.
  void Write(absl::string_view record);

 private:
  LogFile(FileDescriptor file, std::string name, Warn warn);

  FileDescriptor file_;
  std::string name_;  // with the path
  Warn warn_;         // null after the first message
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_BASE_LOG_FILE_H_
