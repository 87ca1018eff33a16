#include "worker/base/file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/file_descriptor.h"
#include "common/polling.h"
#include "common/random_number.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

absl::Status SystemError(absl::string_view what, absl::string_view path, int error) {
  const std::string message = absl::StrCat(what, " ", path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::ResourceExhaustedError(message);
    case EISDIR:
      return absl::InvalidArgumentError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::Status WriteAll(int fd, absl::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return SystemError("cannot write", path, errno);
    }
    bytes.remove_prefix(written);
  }
  return absl::OkStatus();
}

// Opens a file for reading without waiting for the writer of a pipe.
absl::StatusOr<FileDescriptor> OpenToRead(const std::string& path) {
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid()) return SystemError("cannot open", path, errno);
  return file;
}

absl::StatusOr<std::string> ReadAll(int fd, const std::string& path, size_t max_bytes,
                                    absl::Duration pipe_timeout) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return SystemError("cannot read", path, errno);
  const bool may_wait = !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
  std::string contents;
  char buffer[1 << 16];
  while (true) {
    if (may_wait && !AwaitSocket(fd, POLLIN, MonotonicNow() + pipe_timeout)) {
      return absl::DeadlineExceededError(absl::StrCat("nothing was written to ", path, " for ",
                                                      absl::FormatDuration(pipe_timeout)));
    }
    const ssize_t count = read(fd, buffer, sizeof(buffer));
    if (count < 0) {
      if (errno == EINTR) continue;
      return SystemError("cannot read", path, errno);
    }
    if (count == 0) return contents;
    if (contents.size() + count > max_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is longer than the maximum of ", max_bytes, " bytes"));
    }
    contents.append(buffer, count);
  }
}

}  // namespace

absl::Status SyncDirectory(const std::string& directory) {
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return SystemError("cannot open", directory, errno);
  const int result = fsync(fd);
  const int error = errno;
  close(fd);
  // Some file systems do not support syncing a directory.
  if (result != 0 && error != EINVAL) return SystemError("cannot sync", directory, error);
  return absl::OkStatus();
}

namespace {

enum class Durability { kProcess, kMachine };

std::string TemporaryBeside(const std::string& path) {
  return absl::StrCat(path, ".", absl::Hex(DrawRandomNumber()));
}

int CreateTemporary(const std::string& path) {
  return open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

absl::Status Write(const std::string& path, absl::Span<const absl::string_view> pieces,
                   Durability durability) {
  const std::string temporary = TemporaryBeside(path);
  const int fd = CreateTemporary(temporary);
  if (fd < 0) return SystemError("cannot create", temporary, errno);
  bool renamed = false;
  const absl::Cleanup remover = [&] {
    close(fd);
    if (!renamed) unlink(temporary.c_str());
  };
  for (const absl::string_view piece : pieces) {
    SYNCGRADS_RETURN_IF_ERROR(WriteAll(fd, piece, temporary));
  }
  if (durability == Durability::kMachine && fsync(fd) != 0) {
    return SystemError("cannot sync", temporary, errno);
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    return SystemError("cannot rename to", path, errno);
  }
  renamed = true;
  return durability == Durability::kMachine ? SyncDirectory(DirectoryOf(path)) : absl::OkStatus();
}

}  // namespace

std::string PathFrom(absl::string_view directory, absl::string_view path) {
  if (absl::StartsWith(path, "/") || directory.empty()) return std::string(path);
  return absl::StrCat(directory, "/", path);
}

std::string DirectoryOf(absl::string_view path) {
  const size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos) return ".";
  return slash == 0 ? "/" : std::string(path.substr(0, slash));
}

bool IsDirectory(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes,
                                     absl::Duration pipe_timeout) {
  SYNCGRADS_ASSIGN_OR_RETURN(const FileDescriptor file, OpenToRead(path));
  return ReadAll(file.get(), path, max_bytes, pipe_timeout);
}

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t max_bytes) {
  SYNCGRADS_ASSIGN_OR_RETURN(const FileDescriptor file, OpenToRead(path));
  struct stat info = {};
  if (fstat(file.get(), &info) != 0) return SystemError("cannot read", path, errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  return ReadAll(file.get(), path, max_bytes, kPipeTimeout);
}

absl::StatusOr<std::string> ReadFileRange(const std::string& path, uint64_t offset, size_t size) {
  SYNCGRADS_ASSIGN_OR_RETURN(const FileDescriptor file, OpenToRead(path));
  std::string bytes(size, '\0');
  size_t filled = 0;
  while (filled < size) {
    const ssize_t count =
        pread(file.get(), &bytes[filled], size - filled, static_cast<off_t>(offset + filled));
    if (count < 0) {
      if (errno == EINTR) continue;
      return SystemError("cannot read", path, errno);
    }
    if (count == 0) break;
    filled += static_cast<size_t>(count);
  }
  bytes.resize(filled);
  return bytes;
}

absl::Status WriteFileAtomically(const std::string& path,
                                 absl::Span<const absl::string_view> pieces) {
  return Write(path, pieces, Durability::kMachine);
}

absl::Status CheckWritable(const std::string& path) {
  if (IsDirectory(path)) return SystemError("cannot write", path, EISDIR);
  const std::string temporary = TemporaryBeside(path);
  const FileDescriptor file(CreateTemporary(temporary));
  if (!file.valid()) return SystemError("cannot create", temporary, errno);
  unlink(temporary.c_str());
  return absl::OkStatus();
}

absl::Status ReplaceFile(const std::string& path, absl::Span<const absl::string_view> pieces) {
  return Write(path, pieces, Durability::kProcess);
}

std::string WithSuffix(const std::string& path, const std::string& suffix) {
  if (path.empty()) return path;
  const size_t dot = path.rfind('.');
  const size_t slash = path.rfind('/');
  const bool has_extension =
      dot != std::string::npos && (slash == std::string::npos || dot > slash);
  const size_t end = has_extension ? dot : path.size();
  return absl::StrCat(path.substr(0, end), ".", suffix, path.substr(end));
}

}  // namespace syncgrads
