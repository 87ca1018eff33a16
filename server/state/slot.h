// One closed round of one chunk, in memory.

#ifndef SYNCGRADS_SERVER_STATE_SLOT_H_
#define SYNCGRADS_SERVER_STATE_SLOT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "common/aligned_buffer.h"

namespace syncgrads::server {

struct Slot {
  AlignedBuffer values;
  // Where the values lie in the group's arena; none if they lie elsewhere.
  std::optional<uint64_t> arena_offset;
  // As many as the optimizer has; each as long as the values.
  std::vector<AlignedBuffer> optimizer;
  // Per span, how often the optimizer has updated it.
  std::vector<uint64_t> updates;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_SLOT_H_
