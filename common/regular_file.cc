#include "common/regular_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace syncgrads {
namespace {

absl::Status SystemError(int error) {
  const char* const reason = std::strerror(error);
  if (error == ENOENT) return absl::NotFoundError(reason);
  if (error == EACCES) return absl::PermissionDeniedError(reason);
  return absl::FailedPreconditionError(reason);
}

}  // namespace

absl::StatusOr<RegularFile> RegularFile::Open(const std::string& path) {
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat attributes = {};
  if (!file.valid() || fstat(file.get(), &attributes) != 0) return SystemError(errno);
  if (!S_ISREG(attributes.st_mode)) {
    return absl::FailedPreconditionError("it is not a regular file");
  }
  return RegularFile(std::move(file), attributes);
}

absl::StatusOr<std::string> RegularFile::Read(size_t most_bytes) const {
  const auto too_large = [most_bytes](uint64_t bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("it has ", bytes, " bytes; at most ", most_bytes, " are permitted"));
  };
  const auto bytes_at_open = static_cast<uint64_t>(attributes_.st_size);
  if (bytes_at_open > most_bytes) return too_large(bytes_at_open);
  std::string text;
  char part[16384];
  while (true) {
    const ssize_t bytes = read(file_.get(), part, sizeof(part));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return SystemError(errno);
    if (bytes == 0) return text;
    text.append(part, static_cast<size_t>(bytes));
    // It has grown meanwhile.
    if (text.size() > most_bytes) return too_large(text.size());
  }
}

}  // namespace syncgrads
