// Where a group's slots lie.

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
  // What it held when the source was opened.
  std::optional<RoundRecord> published;
};

// Thread-safe. Outlives the slots that come from it.
class SlotSource {
 public:
  virtual ~SlotSource() = default;

  // The slots of a chunk, by its position among the group's on this server. To be
  // called once for each.
  virtual std::vector<StoredSlot> SlotsOf(size_t position) = 0;

  // One more, for a chunk all of whose slots are held or too small; null where a
  // slot may as well be memory of the process.
  //
  // Errors:
  //   ResourceExhausted, Unavailable  as CreateMappedFile
  virtual absl::StatusOr<std::unique_ptr<Slot>> Another(size_t position, size_t value_bytes,
                                                        size_t contributors) = 0;

  // For a worker to read results from.
  virtual absl::StatusOr<FileDescriptor> ReadOnlyDescriptor() const = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_SLOT_SOURCE_H_
