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
#include "common/status_macros.h"

namespace syncgrads::server {

uint64_t RoomIn(const std::string& directory) {
  struct statfs status;
  if (statfs(directory.c_str(), &status) != 0) return 0;
  const uint64_t room = uint64_t{status.f_bavail} * static_cast<uint64_t>(status.f_bsize);
  if (status.f_type != TMPFS_MAGIC && status.f_type != RAMFS_MAGIC) return room;
  // A tmpfs without a size limit reports 0 blocks: only the available memory limits it. If the
  // available memory cannot be read, assume none.
  const uint64_t memory = AvailableMemory().value_or(0);
  return status.f_blocks == 0 ? memory : std::min(room, memory);
}

uint64_t SizeOfFileSystem(const std::string& directory) {
  struct statfs status;
  if (statfs(directory.c_str(), &status) != 0) return 0;
  const uint64_t size = uint64_t{status.f_blocks} * static_cast<uint64_t>(status.f_bsize);
  if (status.f_type != TMPFS_MAGIC && status.f_type != RAMFS_MAGIC) return size;
  const uint64_t memory = TotalMemory().value_or(0);
  if (size == 0 || memory == 0) return std::max(size, memory);
  return std::min(size, memory);
}

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Create(const std::string& path,
                                                               size_t bytes, uint64_t room,
                                                               const AllocationProgress& progress) {
  if (bytes > room) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no space for ", path, " of ", bytes, " bytes: ", room, " are free"));
  }
  // An existing file may still be mapped. It is unlinked rather than truncated, so that its
  // mappings stay valid.
  unlink(path.c_str());
  FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) {
    return absl::UnavailableError(absl::StrCat(path, " cannot be created: ", std::strerror(errno)));
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const Identity identity, IdentityOf(path, file));
  absl::StatusOr<std::unique_ptr<SharedRegion>> region =
      SharedRegion::Allocate(std::move(file), bytes, progress);
  if (!region.ok()) {
    unlink(path.c_str());
    return absl::ResourceExhaustedError(absl::StrCat("no space for ", path, " of ", bytes,
                                                     " bytes: ", region.status().message(), ", ",
                                                     room, " were free"));
  }
  return std::unique_ptr<MappedFile>(new MappedFile(path, identity, *std::move(region)));
}

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  FileDescriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid()) {
    const std::string why = absl::StrCat(path, " cannot be opened: ", std::strerror(errno));
    return errno == ENOENT ? absl::NotFoundError(why) : absl::UnavailableError(why);
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const Identity identity, IdentityOf(path, file));
  SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<SharedRegion> region,
                             SharedRegion::Map(std::move(file)));
  return std::unique_ptr<MappedFile>(new MappedFile(path, identity, std::move(region)));
}

absl::StatusOr<MappedFile::Identity> MappedFile::IdentityOf(const std::string& path,
                                                            const FileDescriptor& file) {
  struct stat status;
  if (fstat(file.get(), &status) != 0) {
    return absl::UnavailableError(absl::StrCat(path, " cannot be read: ", std::strerror(errno)));
  }
  return Identity{status.st_dev, status.st_ino};
}

absl::StatusOr<FileDescriptor> MappedFile::ReadOnlyDescriptor() const {
  FileDescriptor file(open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file.valid()) {
    return absl::UnavailableError(
        absl::StrCat(path_, " cannot be opened again: ", std::strerror(errno)));
  }
  struct stat status;
  if (fstat(file.get(), &status) != 0 || Identity{status.st_dev, status.st_ino} != identity_) {
    return absl::UnavailableError(absl::StrCat(path_, " has been replaced by another file"));
  }
  return file;
}

void MappedFile::Delete() const {
  struct stat status;
  if (lstat(path_.c_str(), &status) != 0) return;
  if (Identity{status.st_dev, status.st_ino} == identity_) unlink(path_.c_str());
}

}  // namespace syncgrads::server
