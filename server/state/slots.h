// The memory that a chunk's results live in.
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

#include "common/mutex.h"
#include "server/state/arena.h"
#include "server/state/slot.h"

namespace syncgrads::server {

// What a slot of a chunk has room for.
struct SlotShape {
  size_t value_bytes = 0;
  size_t optimizer_slots = 0;
  size_t spans = 0;
};

// Thread-safe. Slots may outlive the pool.
class SlotPool {
 public:
  // Slots come from `arena` as long as it has free ones; it may be null.
  explicit SlotPool(SlotShape shape, std::shared_ptr<Arena> arena = nullptr,
                    size_t position = 0);

  // A slot whose contents are anything. `value_bytes` may be more than the
  // shape's: a gather's result grows with the membership. Past what the arena has
  // room for, a slot has memory of its own.
  std::shared_ptr<Slot> Acquire(size_t value_bytes);
  std::shared_ptr<Slot> Acquire() { return Acquire(shape_.value_bytes); }

 private:
  struct FreeList {
    // Outlives the slots that lie in it.
    std::shared_ptr<Arena> arena;
    Mutex mutex;
    std::vector<std::unique_ptr<Slot>> in_arena ABSL_GUARDED_BY(mutex);
    // At most one of these is kept.
    std::unique_ptr<Slot> spare ABSL_GUARDED_BY(mutex);
  };

  std::unique_ptr<Slot> Take(size_t value_bytes);

  const SlotShape shape_;
  const std::shared_ptr<FreeList> free_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_SLOTS_H_
