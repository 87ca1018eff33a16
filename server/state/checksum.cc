#include "server/state/checksum.h"

#if defined(__x86_64__)
// The widest vectors that the processor has; the same checksum on all of them.
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

namespace syncgrads::server {

uint64_t Checksum(const void* data, size_t bytes, uint64_t before) {
  return XXH3_64bits_withSeed(data, bytes, before);
}

}  // namespace syncgrads::server
