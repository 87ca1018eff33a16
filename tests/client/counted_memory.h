// Counts the allocations and copies of the whole process, including those of linked libraries.
//
// Linking this replaces malloc and memcpy. Sanitizers replace them too; in builds with a sanitizer
// nothing is counted.

#ifndef SYNCGRADS_TESTS_CLIENT_COUNTED_MEMORY_H_
#define SYNCGRADS_TESTS_CLIENT_COUNTED_MEMORY_H_

#include <cstddef>
#include <cstdint>

namespace syncgrads::testing {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kCountsMemory = false;
#else
inline constexpr bool kCountsMemory = true;
#endif

struct MemoryCounts {
  uint64_t allocations = 0;
  // Allocations of 64 KiB and more: buffers for payloads rather than small objects.
  uint64_t large_allocations = 0;
  // Bytes copied by calls of memcpy and memmove with 2 KiB and more: payloads rather than headers.
  uint64_t bytes_copied = 0;

  friend MemoryCounts operator-(const MemoryCounts& a, const MemoryCounts& b) {
    return {a.allocations - b.allocations, a.large_allocations - b.large_allocations,
            a.bytes_copied - b.bytes_copied};
  }
};

// Returns the counts of all threads since the program started. Thread-safe.
MemoryCounts CountedMemory();

}  // namespace syncgrads::testing

#endif  // SYNCGRADS_TESTS_CLIENT_COUNTED_MEMORY_H_
