#include "common/shm/region.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/memory_limit.h"

namespace syncgrads {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

std::string Reason() { return std::strerror(errno); }

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (number_ >= 0) close(number_);
}

absl::StatusOr<std::unique_ptr<SharedRegion>> SharedRegion::Create(const std::string& name,
                                                                   size_t bytes) {
  const auto refused = [&](const char* step) {
    return absl::ResourceExhaustedError(absl::StrCat("no shared memory of ", bytes, " bytes for ",
                                                     name, ": ", step, ": ", Reason()));
  };
  // Asked for first: what fallocate takes too much of, it takes from everybody.
  const uint64_t available = AvailableMemory();
  if (bytes > available) {
    return absl::ResourceExhaustedError(absl::StrCat("no shared memory of ", bytes, " bytes for ",
                                                     name, ": ", available, " are available"));
  }
  FileDescriptor descriptor(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor.valid()) return refused("memfd_create");
  if (ftruncate(descriptor.get(), static_cast<off_t>(bytes)) != 0) return refused("ftruncate");
  // Taken now: memory that runs out later would be a SIGBUS.
  if (bytes > 0 && fallocate(descriptor.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    return refused("fallocate");
  }
  if (fcntl(descriptor.get(), F_ADD_SEALS, kSeals) != 0) return refused("sealing");
  void* data = nullptr;
  if (bytes > 0) {
    data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor.get(),
                0);
    if (data == MAP_FAILED) return refused("mmap");
  }
  return std::unique_ptr<SharedRegion>(
      new SharedRegion(std::move(descriptor), static_cast<std::byte*>(data), bytes));
}

absl::StatusOr<std::unique_ptr<SharedRegion>> SharedRegion::Map(FileDescriptor file) {
  struct stat status;
  if (fstat(file.get(), &status) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("a file has no size: ", Reason()));
  }
  const size_t bytes = static_cast<size_t>(status.st_size);
  void* data = nullptr;
  if (bytes > 0) {
    data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file.get(), 0);
    if (data == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a file of ", bytes, " bytes cannot be mapped: ", Reason()));
    }
  }
  return std::unique_ptr<SharedRegion>(
      new SharedRegion(std::move(file), static_cast<std::byte*>(data), bytes));
}

SharedRegion::~SharedRegion() {
  if (data_ != nullptr) munmap(data_, size_);
}

absl::StatusOr<FileDescriptor> SharedRegion::ReadOnlyDescriptor() const {
  // Opened anew, since a duplicate of the descriptor could be written through.
  FileDescriptor reopened(
      open(absl::StrCat("/proc/self/fd/", descriptor_.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (!reopened.valid()) {
    return absl::UnavailableError(absl::StrCat("shared memory cannot be reopened: ", Reason()));
  }
  return reopened;
}

absl::StatusOr<std::shared_ptr<const PeerRegion>> PeerRegion::Map(
    const FileDescriptor& descriptor) {
  const int seals = fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a peer's descriptor is no sealable memory: ", Reason()));
  }
  if ((seals & kSeals) != kSeals) {
    return absl::InvalidArgumentError(absl::StrCat("a peer's memory has seals ", seals,
                                                   "; it must have ", kSeals,
                                                   " (no shrinking, no growing)"));
  }
  return MapOwn(descriptor);
}

absl::StatusOr<std::shared_ptr<const PeerRegion>> PeerRegion::MapOwn(
    const FileDescriptor& descriptor) {
  struct stat status;
  if (fstat(descriptor.get(), &status) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a peer's memory has no size: ", Reason()));
  }
  if (!S_ISREG(status.st_mode) || status.st_uid != geteuid()) {
    return absl::InvalidArgumentError(absl::StrCat("a peer's memory is of user ", status.st_uid,
                                                   " and mode ", status.st_mode,
                                                   "; it must be a file of user ", geteuid()));
  }
  const size_t size = static_cast<size_t>(status.st_size);
  void* data = nullptr;
  if (size > 0) {
    data = mmap(nullptr, size, PROT_READ, MAP_SHARED | MAP_POPULATE, descriptor.get(), 0);
    if (data == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a peer's memory of ", size, " bytes cannot be mapped: ", Reason()));
    }
  }
  return std::shared_ptr<const PeerRegion>(new PeerRegion({static_cast<std::byte*>(data), size}));
}

PeerRegion::~PeerRegion() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace syncgrads
