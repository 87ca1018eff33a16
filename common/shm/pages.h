// Maps files into memory and allocates their pages, with huge pages where possible.

#ifndef SYNCGRADS_COMMON_SHM_PAGES_H_
#define SYNCGRADS_COMMON_SHM_PAGES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace syncgrads {

// Owns a file descriptor and closes it on destruction. Moveable. Not thread-safe.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~FileDescriptor();

  int get() const { return number_; }
  bool valid() const { return number_ >= 0; }
  // Returns the descriptor and gives up its ownership: the caller must close it.
  int Release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

// The size of the huge pages that memory of 4 KiB pages can have.
inline constexpr size_t kHugePageBytes = size_t{2} << 20;

// Maps the first `bytes` bytes (at least 1) of `file`, shared. Mappings of at least one huge page
// begin at a multiple of a huge page's size. `protection` and `flags` are those of mmap. The caller
// must munmap the result. Returns null and sets errno if the file cannot be mapped.
std::byte* MapPages(const FileDescriptor& file, size_t bytes, int protection, int flags);

// A callback that receives the number of bytes allocated so far. It is called on the thread that
// called AllocatePages.
using AllocationProgress = std::function<void(uint64_t bytes)>;

// Allocates all pages of `file`, which has `bytes` bytes (at least 1) and is mapped for writing at
// `data` by MapPages. Several threads allocate; the call returns when all have finished. If the
// file is in memory and the kernel (Linux 6.1 or later) has free huge pages, whole huge pages are
// used, whatever the kernel's setting for shared memory. `progress` may be null. Returns 0, or an
// errno; in this case some pages may be allocated.
int AllocatePages(const FileDescriptor& file, std::byte* data, size_t bytes,
                  const AllocationProgress& progress);

// Tries whether the kernel makes huge pages of shared memory now: not before Linux 6.1, and not if
// they are switched off.
bool HasHugePages();

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_SHM_PAGES_H_
