// The pool of slots that one chunk's results are written to.
//
// A slot has one closed round of one chunk: the result and, if an optimizer runs on the server,
// the optimizer's arrays and counts of updates. A slot is written once, before it is published,
// and is read-only while it is referenced, for example by the chunk, by a message in flight to a
// member, or by the loan of a member that reads it in shared memory. When the last reference is
// dropped, the slot returns to the pool and can be written again.
//
// A further slot, which has a file of its own, is deleted if it has been free while more than
// kIdleRounds slots were taken from the pool.

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

// The sizes of a chunk's slots.
struct SlotShape {
  size_t value_bytes = 0;
  size_t optimizer_slots = 0;
  size_t spans = 0;
  size_t residual_bytes = 0;
  // The maximum number of rounds that TakeKept returns.
  size_t kept = 2;
};

// Thread-safe, except for TakeKept. Owned by the chunk. Slots may outlive the pool: they keep its
// source alive.
class SlotPool {
 public:
  static constexpr uint64_t kIdleRounds = 16;

  // `source` has the slots of the chunk at `position`; null: slots are memory of the process.
  explicit SlotPool(SlotShape shape, std::shared_ptr<SlotSource> source = nullptr,
                    size_t position = 0);

  // Returns a slot to write a round to, with undefined contents and a vacant record.
  // `value_bytes` may exceed the shape's: the result of a gather grows with the membership.
  // `contributors` is the maximum number of contributors of the round. If the source has no free
  // slot of that size, it is asked for a further slot; if it has none, the slot is memory of the
  // process.
  //
  // Errors: those of SlotSource::Another
  absl::StatusOr<std::shared_ptr<Slot>> Acquire(size_t value_bytes, size_t contributors = 0);
  absl::StatusOr<std::shared_ptr<Slot>> Acquire() { return Acquire(shape_.value_bytes); }

  // A round that was published in the source when the pool was made.
  struct Kept {
    RoundRecord record;
    std::shared_ptr<Slot> slot;
  };
  // Returns the newest published rounds of the source, newest first: consecutive rounds, at most
  // SlotShape::kept. Later calls return none. To be called before other threads use the pool.
  std::vector<Kept> TakeKept();

 private:
  // The free slots. Shared by the pool and the slots in use, which return to it.
  struct FreeList {
    // First, since the slots point into its memory and must be destroyed before it.
    std::shared_ptr<SlotSource> source;
    Mutex mutex;
    // The number of times that a slot was requested.
    uint64_t taken ABSL_GUARDED_BY(mutex) = 0;
    // The free slots of the source.
    std::vector<std::unique_ptr<Slot>> slots ABSL_GUARDED_BY(mutex);
    // A free slot in memory of the process; others of that kind are freed.
    std::unique_ptr<Slot> spare ABSL_GUARDED_BY(mutex);
  };

  // Returns a shared pointer to `slot`; the slot returns to the free list when the last reference
  // is dropped.
  std::shared_ptr<Slot> Share(std::unique_ptr<Slot> slot) const;
  // Takes a free slot of the source that is large enough; null if there is none. Moves further
  // slots that have been free for long to `idle`, for the caller to delete without the lock.
  std::unique_ptr<Slot> TakeFreeLocked(size_t value_bytes, size_t contributors,
                                       std::vector<std::unique_ptr<Slot>>& idle)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(free_->mutex);
  absl::StatusOr<std::unique_ptr<Slot>> Take(size_t value_bytes, size_t contributors);

  const SlotShape shape_;
  const size_t position_;
  const std::shared_ptr<FreeList> free_;
  std::vector<Kept> kept_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_SLOTS_H_
