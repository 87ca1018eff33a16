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

#include "common/aligned_buffer.h"
#include "common/mutex.h"

namespace syncgrads::server {

struct Slot {
  AlignedBuffer values;
  // As many as the optimizer has; each as long as the values.
  std::vector<AlignedBuffer> optimizer;
  // Per span, how often the optimizer has updated it.
  std::vector<uint64_t> updates;
};

// What a slot of a chunk has room for.
struct SlotShape {
  size_t value_bytes = 0;
  size_t optimizer_slots = 0;
  size_t spans = 0;
};

// Thread-safe. Slots may outlive the pool.
class SlotPool {
 public:
  explicit SlotPool(SlotShape shape);

  // A slot whose contents are anything. `value_bytes` may be more than the
  // shape's: a gather's result grows with the membership.
  std::shared_ptr<Slot> Acquire(size_t value_bytes);
  std::shared_ptr<Slot> Acquire() { return Acquire(shape_.value_bytes); }

 private:
  struct FreeList {
    Mutex mutex;
    std::vector<std::unique_ptr<Slot>> slots ABSL_GUARDED_BY(mutex);
  };

  const SlotShape shape_;
  const std::shared_ptr<FreeList> free_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_STATE_SLOTS_H_
