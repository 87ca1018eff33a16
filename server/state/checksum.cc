#include "server/state/checksum.h"

#include <algorithm>

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

uint64_t BlocksChecksum(const void* data, size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  uint64_t sum = 0;
  for (; bytes > 0; at += kChecksumBlock) {
    const size_t block = std::min(bytes, kChecksumBlock);
    sum = Checksum(at, block, sum);
    bytes -= block;
  }
  return sum;
}

}  // namespace syncgrads::server
