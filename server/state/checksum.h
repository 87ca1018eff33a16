// The checksum of what is kept over a crash: XXH3, 64 bits. It finds damage, not
// malice, and runs as fast as memory can be read.

#ifndef SYNCGRADS_SERVER_STATE_CHECKSUM_H_
#define SYNCGRADS_SERVER_STATE_CHECKSUM_H_

#include <cstddef>
#include <cstdint>

namespace syncgrads::server {

// Of `bytes` bytes, chained to the checksum of what comes before them.
uint64_t Checksum(const void* data, size_t bytes, uint64_t before = 0);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_CHECKSUM_H_
