// The state of a group with two chunks, for tests.

#ifndef SYNCGRADS_TESTS_SERVER_STATE_EXAMPLE_STATE_H_
#define SYNCGRADS_TESTS_SERVER_STATE_EXAMPLE_STATE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "server/state/slot_record.h"
#include "server/state/slots.h"
#include "server/state/state_file.h"

namespace syncgrads::server {

inline StateLayout ExampleLayout() {
  StateLayout layout;
  layout.sequence = 3;
  layout.generation = Generation{7};
  layout.group = GroupId{2};
  layout.optimizer_slots = 2;
  layout.contributors = 4;
  layout.chunks = {{ChunkId{0}, 100, 2}, {ChunkId{5}, 40, 1}};
  return layout;
}

// Returns the record of a round of the chunk at `position` in `layout`.
inline RoundRecord ExampleRecord(const StateLayout& layout, size_t position, uint64_t round) {
  RoundRecord record;
  record.generation = layout.generation;
  record.group = layout.group;
  record.chunk = layout.chunks[position].id;
  record.round = Round{round};
  record.epoch = 4;
  record.value_bytes = layout.chunks[position].value_bytes;
  record.counts.assign(layout.chunks[position].spans, 3);
  record.contributors = {0, 1, 2};
  return record;
}

// Fills every byte of a slot with a value that identifies the round.
inline void Fill(Slot& slot, uint64_t round) {
  std::memset(slot.values.data(), static_cast<int>(round), slot.values.size());
  for (AlignedBuffer& array : slot.optimizer) {
    std::memset(array.data(), static_cast<int>(round + 100), array.size());
  }
  std::fill(slot.updates.begin(), slot.updates.end(), round);
}

}  // namespace syncgrads::server

#endif  // SYNCGRADS_TESTS_SERVER_STATE_EXAMPLE_STATE_H_
