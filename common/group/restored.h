// The payload that restores a chunk's parameters and optimizer state: the parameters, then each
// slot, then for each span the number of its updates in 8 bytes, little-endian.

#ifndef SYNCGRADS_COMMON_GROUP_RESTORED_H_
#define SYNCGRADS_COMMON_GROUP_RESTORED_H_

#include <cstddef>
#include <cstdint>

#include "common/group/layout.h"
#include "common/optim/optimizer.h"
#include "common/update_rule.h"

namespace syncgrads {

// Returns the number of bytes of such a payload.
inline size_t RestoredBytes(const Chunk& chunk, const Optimizer& optimizer) {
  return chunk.bytes() * (1 + static_cast<size_t>(SlotCount(optimizer))) +
         chunk.spans.size() * sizeof(uint64_t);
}

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_GROUP_RESTORED_H_
