// Maps files into memory and allocates their pages, with huge pages where possible.

#ifndef SYNCGRADS_COMMON_SHM_PAGES_H_
#define SYNCGRADS_COMMON_SHM_PAGES_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "common/file_descriptor.h"

namespace syncgrads {

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
