// The memory of one closed round of one chunk: the result, and what an optimizer or a codec
// keeps with it.
//
// A slot lies in memory of the process, in memory shared with workers (Arena), or in a state
// file (StateFile). Slots are made by these and owned through SlotPool. A slot is written by its
// owner alone, before it is published, and is read-only while it is shared.

#ifndef SYNCGRADS_SERVER_STATE_SLOT_H_
#define SYNCGRADS_SERVER_STATE_SLOT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/aligned_buffer.h"
#include "common/codec/residual_guard.h"
#include "server/state/mapped_file.h"

namespace syncgrads::server {

struct Slot {
  AlignedBuffer values;
  // The offset of the values in the group's shared memory or state file; nullopt if the values
  // lie elsewhere, where workers cannot map them.
  std::optional<uint64_t> arena_offset;
  // The optimizer's arrays, each as long as the values.
  std::vector<AlignedBuffer> optimizer;
  // Compressed results only: the compression error that error feedback carries to the next
  // round, element by element, and the guard that watches it. Otherwise empty.
  AlignedBuffer residual;
  ResidualGuard guard;
  // For each span, the number of updates that the optimizer has applied to it.
  std::vector<uint64_t> updates;
  // The memory of the slot's record in its state file; empty if the slot does not lie in a file.
  // See slot_record.h.
  absl::Span<std::byte> record;
  // The checksum of the values, if it was computed while they were written.
  std::optional<uint64_t> values_checksum;
  // Further slots only: the slot's own file. Null if the slot shares its memory with others.
  std::shared_ptr<const MappedFile> file;
  // The value of the pool's count of taken slots when this slot was last taken.
  uint64_t last_taken = 0;
  // The number of contributors that the record has room for.
  size_t contributors = 0;
  // The chunk's newest-round word in the group's file; null if the slot has no record.
  uint64_t* newest = nullptr;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_SLOT_H_
