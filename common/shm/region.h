// Memory that two processes on one host share.
//
// A region is a memfd. Its owner maps it and then seals it, before it sends the file descriptor to
// a peer. The peer checks the seals before it maps the region.
//
// The seals forbid shrinking and growing and, since Linux 5.1, everything that needs the right to
// write except for the mapping that exists. Thus no process can remove pages while another one
// reads them, and a peer cannot write even if it opens its descriptor again through /proc/self/fd.
// An earlier kernel has no such seal, and its regions are without it.

#ifndef SYNCGRADS_COMMON_SHM_REGION_H_
#define SYNCGRADS_COMMON_SHM_REGION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/file_descriptor.h"
#include "common/shm/pages.h"

namespace syncgrads {

// Memory of this process that peers can map. It unmaps the memory on destruction. Its contents can
// change; everything else is fixed after CloseDescriptor, if that is called.
class SharedRegion {
 public:
  // Creates a sealed region of its own file, and allocates all of its pages with AllocatePages.
  // `name` is visible in /proc.
  //
  // Errors:
  //   ResourceExhausted  less memory is available than requested: the message has both numbers;
  //                      or the region cannot be created: the message has its size and the reason
  static absl::StatusOr<std::unique_ptr<SharedRegion>> Create(
      const std::string& name, size_t bytes, const AllocationProgress& progress = nullptr);
  // Sets the size of an empty file of this process to `bytes`, maps it and allocates all of its
  // pages.
  //
  // Errors:
  //   ResourceExhausted  the file cannot have this size, or cannot be mapped
  static absl::StatusOr<std::unique_ptr<SharedRegion>> Allocate(
      FileDescriptor file, size_t bytes, const AllocationProgress& progress = nullptr);
  // Maps a file of this process whose pages are all allocated. The file keeps its size.
  //
  // Errors:
  //   ResourceExhausted  the file's size cannot be read, or the file cannot be mapped
  static absl::StatusOr<std::unique_ptr<SharedRegion>> Map(FileDescriptor file);
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

  // Returns a descriptor that a peer can map for reading only. The caller sends it and then closes
  // it.
  //
  // Errors:
  //   Unavailable  the file cannot be reopened, or CloseDescriptor was called
  absl::StatusOr<FileDescriptor> ReadOnlyDescriptor() const;

  // Closes the descriptor, which the mapping does not need. Must be called before other threads use
  // the region.
  void CloseDescriptor() { descriptor_ = FileDescriptor(); }

 private:
  SharedRegion(FileDescriptor descriptor, std::byte* data, size_t size)
      : descriptor_(std::move(descriptor)), data_(data), size_(size) {}

  FileDescriptor descriptor_;
  std::byte* const data_;
  const size_t size_;
};

// A peer's region, mapped for reading. It unmaps the memory on destruction. The peer can change the
// contents at any time, so a reader copies data before it checks them. Immutable; thread-safe.
class PeerRegion {
 public:
  struct Limits {
    // A larger region is refused.
    uint64_t bytes = UINT64_MAX;
    // The pages of a larger region are mapped when they are read: mapping all of them at once takes
    // time and memory for page tables, a 512th of the region.
    uint64_t mapped_at_once = UINT64_MAX;
  };

  // Maps a region that an untrusted peer has sent. The descriptor may be closed afterwards.
  //
  // Errors:
  //   InvalidArgument    the file is not a sealed memfd of ordinary pages, not allocated
  //                      completely, or not owned by this process's user
  //   ResourceExhausted  the file is larger than the limit, or cannot be mapped
  static absl::StatusOr<std::shared_ptr<const PeerRegion>> Map(const FileDescriptor& descriptor,
                                                               const Limits& limits);
  // Without limits.
  static absl::StatusOr<std::shared_ptr<const PeerRegion>> Map(const FileDescriptor& descriptor);
  // Maps results that a server with this process's own user has sent. They may lie in a file, which
  // the server never shrinks, so seals are not required. The descriptor may be closed afterwards.
  //
  // Errors:
  //   InvalidArgument    the descriptor is not a regular file of this user
  //   ResourceExhausted  the file cannot be mapped
  static absl::StatusOr<std::shared_ptr<const PeerRegion>> MapOwn(const FileDescriptor& descriptor);
  ~PeerRegion();
  PeerRegion(const PeerRegion&) = delete;
  PeerRegion& operator=(const PeerRegion&) = delete;

  absl::Span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit PeerRegion(absl::Span<const std::byte> bytes) : bytes_(bytes) {}

  // Maps a file of this process's user.
  static absl::StatusOr<std::shared_ptr<const PeerRegion>> MapFile(const FileDescriptor& descriptor,
                                                                   const Limits& limits);

  const absl::Span<const std::byte> bytes_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_SHM_REGION_H_
