#include "tests/client/counted_memory.h"

#include <atomic>
#include <cerrno>

namespace syncgrads::testing {
namespace {

constexpr size_t kLarge = 64 << 10;
constexpr size_t kPayload = 2 << 10;

std::atomic<uint64_t> allocations{0};
std::atomic<uint64_t> large_allocations{0};
std::atomic<uint64_t> bytes_copied{0};

[[maybe_unused]] void Count(size_t allocated) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (allocated >= kLarge) large_allocations.fetch_add(1, std::memory_order_relaxed);
}

// Plain loops. The attribute prevents GCC from replacing them with calls of memcpy or memmove,
// which they implement. Clang compiles only programs in which nothing is counted.
#ifndef __clang__
__attribute__((optimize("no-tree-loop-distribute-patterns")))
#endif
[[maybe_unused]] void
Copy(char* to, const char* from, size_t bytes) {
  if (bytes >= kPayload) bytes_copied.fetch_add(bytes, std::memory_order_relaxed);
  if (to < from || to >= from + bytes) {
    for (size_t i = 0; i < bytes; ++i) to[i] = from[i];
  } else {
    for (size_t i = bytes; i-- > 0;) to[i] = from[i];
  }
}

}  // namespace

MemoryCounts CountedMemory() { return {allocations, large_allocations, bytes_copied}; }

}  // namespace syncgrads::testing

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" {

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) {
  syncgrads::testing::Count(bytes);
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  syncgrads::testing::Count(count * bytes);
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
  syncgrads::testing::Count(bytes);
  return __libc_realloc(memory, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  syncgrads::testing::Count(bytes);
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  syncgrads::testing::Count(bytes);
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}

void* memcpy(void* to, const void* from, size_t bytes) {
  syncgrads::testing::Copy(static_cast<char*>(to), static_cast<const char*>(from), bytes);
  return to;
}
void* memmove(void* to, const void* from, size_t bytes) {
  syncgrads::testing::Copy(static_cast<char*>(to), static_cast<const char*>(from), bytes);
  return to;
}
void* __memcpy_chk(void* to, const void* from, size_t bytes, size_t) {
  return memcpy(to, from, bytes);
}
void* __memmove_chk(void* to, const void* from, size_t bytes, size_t) {
  return memmove(to, from, bytes);
}
}
#endif
