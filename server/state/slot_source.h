// The interface of the memory that a group's slots lie in: a StateFile or an Arena.

#ifndef SYNCGRADS_SERVER_STATE_SLOT_SOURCE_H_
#define SYNCGRADS_SERVER_STATE_SLOT_SOURCE_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/shm/region.h"
#include "server/state/slot.h"
#include "server/state/slot_record.h"

namespace syncgrads::server {

struct StoredSlot {
  std::unique_ptr<Slot> slot;
  // The round that was published in the slot when the source was opened; nullopt if vacant.
  std::optional<RoundRecord> published;
};

// Thread-safe. Must outlive the slots that it returns, which point into its memory.
class SlotSource {
 public:
  virtual ~SlotSource() = default;

  // Returns the slots of a chunk. `position` is the chunk's index among the group's chunks on
  // this server. To be called once for each chunk.
  virtual std::vector<StoredSlot> SlotsOf(size_t position) = 0;

  // Makes a further slot for a chunk, with at least `value_bytes` and a record for at least
  // `contributors`. Called if all slots of the chunk are in use or too small. Returns null if
  // the caller should use memory of the process instead.
  //
  // Errors:
  //   ResourceExhausted, Unavailable  the memory cannot be made; see MappedFile::Create
  virtual absl::StatusOr<std::unique_ptr<Slot>> Another(size_t position, size_t value_bytes,
                                                        size_t contributors) = 0;

  // Returns a descriptor that a worker on this host can map, read-only, to read results.
  virtual absl::StatusOr<FileDescriptor> ReadOnlyDescriptor() const = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_SLOT_SOURCE_H_
