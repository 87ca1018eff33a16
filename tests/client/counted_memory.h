// Counts what the whole program does with memory: allocations and copies, those of
// the libraries it links included.
//
// Linking this replaces malloc and memcpy; sanitizers do so themselves, and with
// them nothing is counted.

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
  // Of 64 KiB and more: no record of something, but room for a payload.
  uint64_t large_allocations = 0;
  // By memcpy and memmove, in calls of 2 KiB and more: payload, not headers.
  uint64_t bytes_copied = 0;

  friend MemoryCounts operator-(const MemoryCounts& a, const MemoryCounts& b) {
    return {a.allocations - b.allocations, a.large_allocations - b.large_allocations,
            a.bytes_copied - b.bytes_copied};
  }
};

// Since the program began, by all threads.
MemoryCounts CountedMemory();

}  // namespace syncgrads::testing

#endif  // SYNCGRADS_TESTS_CLIENT_COUNTED_MEMORY_H_
