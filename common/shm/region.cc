#include "common/shm/region.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/memory_limit.h"

namespace syncgrads {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

constexpr size_t kHugePage = size_t{2} << 20;

std::string Reason() { return std::strerror(errno); }

// A file of so many bytes (at least 1), whole; null, with errno, if it cannot be mapped.
// Where the file has huge pages, so has the mapping: its address is a multiple of theirs.
void* MapWhole(const FileDescriptor& file, size_t bytes, int protection, int flags) {
  if (bytes < kHugePage) {
    void* const mapped = mmap(nullptr, bytes, protection, MAP_SHARED | flags, file.get(), 0);
    return mapped == MAP_FAILED ? nullptr : mapped;
  }
  const size_t more = bytes + kHugePage;
  void* const room =
      mmap(nullptr, more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  std::byte* const begin = static_cast<std::byte*>(room);
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(begin) % kHugePage) % kHugePage;
  void* const mapped =
      mmap(begin + before, bytes, protection, MAP_SHARED | MAP_FIXED | flags, file.get(), 0);
  if (mapped == MAP_FAILED) {
    const int error = errno;
    munmap(room, more);
    errno = error;
    return nullptr;
  }
  // What was reserved only to find that address; the kernel counts in whole pages.
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t end = before + (bytes + page - 1) / page * page;
  if (before > 0) munmap(begin, before);
  if (end < more) munmap(begin + end, more - end);
  return mapped;
}

// Makes shared memory that is allocated whole one of huge pages, as far as the kernel has
// some and whatever its setting is for those who do not ask; a file on a disk stays as it
// is.
void MakeHuge(const FileDescriptor& file, size_t bytes) {
  constexpr int kMadvCollapse = 25;  // of Linux 6.1; earlier ones refuse it
  constexpr size_t kStep = 16 * kHugePage;
  // The rest can do without: somebody waits for this.
  const absl::Time deadline = absl::Now() + absl::Seconds(5);
  void* const data = MapWhole(file, bytes, PROT_READ | PROT_WRITE, 0);
  if (data == nullptr) return;
  const size_t huge = bytes / kHugePage * kHugePage;
  for (size_t at = 0; at < huge; at += kStep) {
    const size_t length = std::min(kStep, huge - at);
    const bool done = madvise(static_cast<std::byte*>(data) + at, length, kMadvCollapse) == 0;
    // Where there are no more, looking for some takes long. EAGAIN is a page that was busy.
    if ((!done && errno != EAGAIN) || absl::Now() > deadline) break;
  }
  munmap(data, bytes);
}

// As MapWhole, of a file that is allocated whole, to be read and written.
void* MapOwned(const FileDescriptor& file, size_t bytes) {
  if (bytes >= kHugePage) MakeHuge(file, bytes);
  return MapWhole(file, bytes, PROT_READ | PROT_WRITE, MAP_POPULATE);
}

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
    data = MapOwned(descriptor, bytes);
    if (data == nullptr) return refused("mmap");
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
    data = MapOwned(file, bytes);
    if (data == nullptr) {
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
    data = MapWhole(descriptor, size, PROT_READ, MAP_POPULATE);
    if (data == nullptr) {
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
