#include "common/shm/region.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/memory_limit.h"

namespace syncgrads {
namespace {

// Without F_SEAL_FUTURE_WRITE, the owner could free pages (FALLOC_FL_PUNCH_HOLE) after a peer has
// checked that all of them are allocated.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
// The seals that a kernel before Linux 5.1 knows.
constexpr int kOldSeals = F_SEAL_SHRINK | F_SEAL_GROW;

std::string Reason() { return std::strerror(errno); }

// Adds the seals that this kernel knows. Returns 0, or -1 and sets errno.
int Seal(const FileDescriptor& file) {
  if (fcntl(file.get(), F_ADD_SEALS, kSeals) == 0) return 0;
  return errno == EINVAL ? fcntl(file.get(), F_ADD_SEALS, kOldSeals) : -1;
}

// Returns the seals that the memory of a peer, on the same kernel, must have.
int NeededSeals() {
  const FileDescriptor probe(memfd_create("seals", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!probe.valid() || Seal(probe) != 0) return kSeals;
  return fcntl(probe.get(), F_GET_SEALS) & kSeals;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedRegion>> SharedRegion::Create(
    const std::string& name, size_t bytes, const AllocationProgress& progress) {
  const auto refused = [&](absl::string_view reason) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate shared memory of ", bytes,
                                                     " bytes for ", name, ": ", reason));
  };
  // Checked first: if fallocate takes too much memory, all processes run out of memory.
  const absl::StatusOr<uint64_t> available = AvailableMemory();
  if (!available.ok()) return refused(available.status().message());
  if (bytes > *available) return refused(absl::StrCat(*available, " bytes are available"));
  FileDescriptor descriptor(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor.valid()) return refused(Reason());
  absl::StatusOr<std::unique_ptr<SharedRegion>> region =
      Allocate(std::move(descriptor), bytes, progress);
  if (!region.ok()) return refused(region.status().message());
  if (Seal((*region)->descriptor_) != 0) return refused(Reason());
  return region;
}

absl::StatusOr<std::unique_ptr<SharedRegion>> SharedRegion::Allocate(
    FileDescriptor file, size_t bytes, const AllocationProgress& progress) {
  std::byte* data = nullptr;
  if (bytes > 0) {
    if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
      return absl::ResourceExhaustedError(Reason());
    }
    data = MapPages(file, bytes, PROT_READ | PROT_WRITE, 0);
    if (data == nullptr) return absl::ResourceExhaustedError(Reason());
  }
  // From here on, the region owns the mapping.
  std::unique_ptr<SharedRegion> region(new SharedRegion(std::move(file), data, bytes));
  // Pages are allocated now, because running out of memory at a later write would be a SIGBUS.
  if (bytes > 0) {
    const int error = AllocatePages(region->descriptor_, data, bytes, progress);
    if (error != 0) return absl::ResourceExhaustedError(std::strerror(error));
  }
  return region;
}

absl::StatusOr<std::unique_ptr<SharedRegion>> SharedRegion::Map(FileDescriptor file) {
  struct stat status;
  if (fstat(file.get(), &status) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot read the size of a file: ", Reason()));
  }
  const size_t bytes = static_cast<size_t>(status.st_size);
  std::byte* data = nullptr;
  if (bytes > 0) {
    data = MapPages(file, bytes, PROT_READ | PROT_WRITE, MAP_POPULATE);
    if (data == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a file of ", bytes, " bytes cannot be mapped: ", Reason()));
    }
  }
  return std::unique_ptr<SharedRegion>(new SharedRegion(std::move(file), data, bytes));
}

SharedRegion::~SharedRegion() {
  if (data_ != nullptr) munmap(data_, size_);
}

absl::StatusOr<FileDescriptor> SharedRegion::ReadOnlyDescriptor() const {
  // The file is opened again, because a duplicate of the descriptor could be mapped for writing.
  FileDescriptor reopened(
      open(absl::StrCat("/proc/self/fd/", descriptor_.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (!reopened.valid()) {
    return absl::UnavailableError(absl::StrCat("shared memory cannot be reopened: ", Reason()));
  }
  return reopened;
}

absl::StatusOr<std::shared_ptr<const PeerRegion>> PeerRegion::Map(
    const FileDescriptor& descriptor) {
  return Map(descriptor, Limits());
}

absl::StatusOr<std::shared_ptr<const PeerRegion>> PeerRegion::Map(const FileDescriptor& descriptor,
                                                                  const Limits& limits) {
  const int seals = fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a peer's descriptor is not memory that can be sealed: ", Reason()));
  }
  if (const int needed = NeededSeals(); (seals & needed) != needed) {
    return absl::InvalidArgumentError(
        absl::StrCat("a peer's memory has seals ", seals, "; it must have ", needed,
                     " (no shrinking, no growing, no further writing)"));
  }
  // Memory must be allocated completely: a page that its owner has not allocated would be allocated
  // by the first reader, and be charged to this process. In a file of huge pages, reading such a
  // page is a SIGBUS if no huge page is free.
  struct statfs system;
  if (fstatfs(descriptor.get(), &system) != 0 || system.f_type != TMPFS_MAGIC) {
    return absl::InvalidArgumentError("a peer's memory does not have ordinary pages");
  }
  struct stat status;
  if (fstat(descriptor.get(), &status) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read the size of a peer's memory: ", Reason()));
  }
  // Pages behind its end would make up for pages that are missing. A huge page at its end may reach
  // that far.
  const auto allocated = static_cast<uint64_t>(status.st_blocks) * 512;
  const auto size = static_cast<uint64_t>(status.st_size);
  if (allocated < size || allocated >= size + kHugePageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a peer's memory of ", size, " bytes has ", allocated,
                     " bytes allocated; all must be allocated, and none behind its end"));
  }
  return MapFile(descriptor, limits);
}

absl::StatusOr<std::shared_ptr<const PeerRegion>> PeerRegion::MapOwn(
    const FileDescriptor& descriptor) {
  return MapFile(descriptor, Limits());
}

absl::StatusOr<std::shared_ptr<const PeerRegion>> PeerRegion::MapFile(
    const FileDescriptor& descriptor, const Limits& limits) {
  struct stat status;
  if (fstat(descriptor.get(), &status) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read the size of a peer's memory: ", Reason()));
  }
  if (!S_ISREG(status.st_mode) || status.st_uid != geteuid()) {
    return absl::InvalidArgumentError(absl::StrCat("a peer's memory is of user ", status.st_uid,
                                                   " and mode ", status.st_mode,
                                                   "; it must be a file of user ", geteuid()));
  }
  const size_t size = static_cast<size_t>(status.st_size);
  if (size > limits.bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a peer's memory has ", size, " bytes; at most ", limits.bytes, " more may be mapped"));
  }
  std::byte* data = nullptr;
  if (size > 0) {
    data = MapPages(descriptor, size, PROT_READ, size <= limits.mapped_at_once ? MAP_POPULATE : 0);
    if (data == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a peer's memory of ", size, " bytes cannot be mapped: ", Reason()));
    }
  }
  return std::shared_ptr<const PeerRegion>(new PeerRegion({data, size}));
}

PeerRegion::~PeerRegion() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace syncgrads
