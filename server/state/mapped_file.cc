#include "server/state/mapped_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/memory_limit.h"

namespace syncgrads::server {

uint64_t RoomIn(const std::string& directory) {
  struct statfs status;
  if (statfs(directory.c_str(), &status) != 0) return 0;
  const uint64_t room = uint64_t{status.f_bavail} * static_cast<uint64_t>(status.f_bsize);
  if (status.f_type != TMPFS_MAGIC && status.f_type != RAMFS_MAGIC) return room;
  // A tmpfs without a limit of its own has none to say.
  return status.f_blocks == 0 ? AvailableMemory() : std::min(room, AvailableMemory());
}

absl::StatusOr<std::unique_ptr<SharedRegion>> CreateMappedFile(const std::string& path,
                                                               size_t bytes, uint64_t room) {
  if (bytes > room) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no room for ", path, " of ", bytes, " bytes: ", room, " are free"));
  }
  // One that is there may be mapped by somebody, who keeps it.
  unlink(path.c_str());
  FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) {
    return absl::UnavailableError(absl::StrCat(path, " cannot be made: ", std::strerror(errno)));
  }
  const int error = posix_fallocate(file.get(), 0, static_cast<off_t>(bytes));
  if (error != 0) {
    unlink(path.c_str());
    return absl::ResourceExhaustedError(absl::StrCat("no room for ", path, " of ", bytes,
                                                     " bytes: ", std::strerror(error), ", ", room,
                                                     " were free"));
  }
  return SharedRegion::Map(std::move(file));
}

absl::StatusOr<std::unique_ptr<SharedRegion>> OpenMappedFile(const std::string& path) {
  FileDescriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.valid()) {
    const std::string why = absl::StrCat(path, " cannot be opened: ", std::strerror(errno));
    return errno == ENOENT ? absl::NotFoundError(why) : absl::UnavailableError(why);
  }
  return SharedRegion::Map(std::move(file));
}

}  // namespace syncgrads::server
