// The memory that a chunk's results live in, the process's own or a file's.
//
// A slot holds one closed round of one chunk: the result, and where an optimizer
// runs on the server its slots and counts of updates. It is written once, before
// it is published, and is read-only while anybody holds it: the chunk, or a
// message on its way to a member. When the last holder lets go it goes back to
// the pool, to be written again.

#ifndef SYNCGRADS_SERVER_STATE_SLOTS_H_
#define SYNCGRADS_SERVER_STATE_SLOTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "server/state/slot.h"
#include "server/state/slot_record.h"
#include "server/state/slot_source.h"

namespace syncgrads::server {

// What a slot of a chunk has room for.
struct SlotShape {
  size_t value_bytes = 0;
  size_t optimizer_slots = 0;
  size_t spans = 0;
  size_t residual_bytes = 0;
  // The newest rounds that are taken back from a source, at most.
  size_t kept = 2;
};

// Thread-safe. Slots may outlive the pool.
class SlotPool {
 public:
  // Slots come from `source` as long as it has free ones; it may be null.
  explicit SlotPool(SlotShape shape, std::shared_ptr<SlotSource> source = nullptr,
                    size_t position = 0);

  // A slot whose contents are anything. `value_bytes` may be more than the
  // shape's: a gather's result grows with the membership. Past what the source has
  // room for, a slot is what it has to give instead, or has memory of its own.
  // `contributors` is how many the round may have.
  //
  // Errors: as SlotSource::Another
  absl::StatusOr<std::shared_ptr<Slot>> Acquire(size_t value_bytes, size_t contributors = 0);
  absl::StatusOr<std::shared_ptr<Slot>> Acquire() { return Acquire(shape_.value_bytes); }

  // The newest rounds that were in the source from the start and follow each
  // other, at most as many as the shape says, newest first.
  struct Kept {
    RoundRecord record;
    std::shared_ptr<Slot> slot;
  };
  std::vector<Kept> TakeKept();

 private:
  struct FreeList {
    // Outlives the slots that lie in it.
    std::shared_ptr<SlotSource> source;
    Mutex mutex;
    // Those of the source.
    std::vector<std::unique_ptr<Slot>> slots ABSL_GUARDED_BY(mutex);
    // One of the process's own memory, at most one of which is kept.
    std::unique_ptr<Slot> spare ABSL_GUARDED_BY(mutex);
  };

  // Shares a slot that goes back to the free list.
  std::shared_ptr<Slot> Share(std::unique_ptr<Slot> slot) const;
  absl::StatusOr<std::unique_ptr<Slot>> Take(size_t value_bytes, size_t contributors);

  const SlotShape shape_;
  const size_t position_;
  const std::shared_ptr<FreeList> free_;
  std::vector<Kept> kept_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_SLOTS_H_
