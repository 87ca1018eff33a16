#include "worker/base/log_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace syncgrads {
namespace {

// Returns 0, or the system's error. `written` becomes the number of bytes that were written.
int WriteAll(int file, absl::string_view bytes, size_t& written) {
  while (written < bytes.size()) {
    const ssize_t count = write(file, bytes.data() + written, bytes.size() - written);
    if (count >= 0) {
      written += static_cast<size_t>(count);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

// Removes the last `bytes` bytes of a file that had `before` bytes, unless another process has
// appended to it since.
void RemoveEnd(int file, off_t before, size_t bytes) {
  struct stat info = {};
  if (fstat(file, &info) != 0 || info.st_size != before + static_cast<off_t>(bytes)) return;
  // After an error the file keeps an incomplete record.
  [[maybe_unused]] const int result = ftruncate(file, before);
}

}  // namespace

LogFile::LogFile(FileDescriptor file, std::string name, Warn warn)
    : file_(std::move(file)), name_(std::move(name)), warn_(std::move(warn)) {}

absl::StatusOr<LogFile> LogFile::Open(const std::string& path, const std::string& what,
                                      Existing existing, Warn warn) {
  const int replaces = existing == Existing::kReplaced ? O_TRUNC : 0;
  FileDescriptor file(
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | replaces, 0666));
  std::string name = absl::StrCat("the ", what, " ", path);
  if (!file.valid()) {
    return absl::PermissionDeniedError(
        absl::StrCat("cannot write ", name, ": ", std::strerror(errno)));
  }
  return LogFile(std::move(file), std::move(name), std::move(warn));
}

void LogFile::Write(absl::string_view record) {
  const off_t before = lseek(file_.get(), 0, SEEK_END);
  size_t written = 0;
  const int error = WriteAll(file_.get(), record, written);
  if (error == 0) return;
  if (written > 0) RemoveEnd(file_.get(), before, written);
  if (warn_ == nullptr) return;
  warn_(absl::StrCat("cannot write ", name_, ": ", std::strerror(error),
                     "; training continues, and what cannot be written is left out"));
  warn_ = nullptr;
}

}  // namespace syncgrads
