// One closed round of one chunk, in memory.

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

namespace syncgrads::server {

struct Slot {
  AlignedBuffer values;
  // Where the values lie in the group's shared memory; none if they lie
  // elsewhere.
  std::optional<uint64_t> arena_offset;
  // As many as the optimizer has; each as long as the values.
  std::vector<AlignedBuffer> optimizer;
  // What results in codecs have lost, element by element, and what watches it; of a
  // chunk whose results are encoded.
  AlignedBuffer residual;
  ResidualGuard guard;
  // Per span, how often the optimizer has updated it.
  std::vector<uint64_t> updates;
  // Where the slot is published, in the file that it lies in; empty if it dies
  // with the process. See slot_record.h.
  absl::Span<std::byte> record;
  // Checksum of the values, where it was taken while they were written.
  std::optional<uint64_t> values_checksum;
  // How many contributors the record has room for.
  size_t contributors = 0;
  // The word of the file that has the chunk's newest round; null without a record.
  uint64_t* newest = nullptr;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_SLOT_H_
