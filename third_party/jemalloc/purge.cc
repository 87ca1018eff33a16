#include "third_party/jemalloc/purge.h"

#include <cstddef>

// See jemalloc(3). Null if the program has another allocator, as in builds with a sanitizer.
extern "C" int mallctl(const char* name, void* old_value, size_t* old_bytes, void* new_value,
                       size_t new_bytes) __attribute__((weak));

namespace syncgrads {

void PurgeFreedMemory() {
  // 4096 is MALLCTL_ARENAS_ALL.
  if (mallctl != nullptr) mallctl("arena.4096.purge", nullptr, nullptr, nullptr, 0);
}

}  // namespace syncgrads
