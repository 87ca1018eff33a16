#include "common/keep_memory.h"

#include <malloc.h>

#include <limits>

namespace syncgrads {

void KeepFreedMemory() {
  // glibc takes no higher threshold than this; without one it adapts from 128 KiB.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
}

}  // namespace syncgrads
