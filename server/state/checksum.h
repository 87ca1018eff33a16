// The checksum of all stored state: XXH3 with 64 bits. It detects damage, but not deliberate
// changes. It runs as fast as memory can be read.

#ifndef SYNCGRADS_SERVER_STATE_CHECKSUM_H_
#define SYNCGRADS_SERVER_STATE_CHECKSUM_H_

#include <cstddef>
#include <cstdint>

namespace syncgrads::server {

// Returns the checksum of `bytes` bytes at `data`. `before` is the checksum of the data that
// precedes them, and chains the two; 0 at the beginning.
uint64_t Checksum(const void* data, size_t bytes, uint64_t before = 0);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_CHECKSUM_H_
