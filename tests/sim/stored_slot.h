// Reads the stored record of a slot in the way that a restarted server does.

#ifndef SYNCGRADS_TESTS_SIM_STORED_SLOT_H_
#define SYNCGRADS_TESTS_SIM_STORED_SLOT_H_

#include <optional>

#include "absl/status/statusor.h"
#include "common/aligned_buffer.h"
#include "server/state/slot_record.h"
#include "server/state/slots.h"

namespace syncgrads::sim {

inline absl::StatusOr<std::optional<server::RoundRecord>> Stored(const server::Slot& slot) {
  if (slot.record.empty()) return std::optional<server::RoundRecord>();
  server::Slot shadow;
  const auto borrow = [](const AlignedBuffer& buffer) {
    return AlignedBuffer::Borrow(const_cast<std::byte*>(buffer.data()), buffer.size());
  };
  shadow.values = borrow(slot.values);
  for (const AlignedBuffer& array : slot.optimizer) shadow.optimizer.push_back(borrow(array));
  shadow.updates.resize(slot.updates.size());
  shadow.record = slot.record;
  shadow.contributors = slot.contributors;
  shadow.newest = slot.newest;
  return server::ReadPublished(shadow);
}

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_STORED_SLOT_H_
