#include "server/state/checksum.h"

#if defined(__x86_64__)
// Dispatches to the widest vector instructions of the processor. The checksum does not depend
// on which they are.
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

namespace syncgrads::server {

uint64_t Checksum(const void* data, size_t bytes, uint64_t before) {
  return XXH3_64bits_withSeed(data, bytes, before);
}

}  // namespace syncgrads::server
