#include "server/state/slots.h"

#include <utility>

namespace syncgrads::server {
namespace {

// A chunk needs two: the newest result, and the one being made. A third covers
// what is still on its way to a slow receiver.
constexpr size_t kKeptFree = 3;

}  // namespace

SlotPool::SlotPool(SlotShape shape) : shape_(shape), free_(std::make_shared<FreeList>()) {}

std::shared_ptr<Slot> SlotPool::Acquire(size_t value_bytes) {
  std::unique_ptr<Slot> slot;
  {
    MutexLock lock(free_->mutex);
    if (!free_->slots.empty()) {
      slot = std::move(free_->slots.back());
      free_->slots.pop_back();
    }
  }
  if (slot == nullptr) {
    slot = std::make_unique<Slot>();
    for (size_t i = 0; i < shape_.optimizer_slots; ++i) {
      slot->optimizer.emplace_back(shape_.value_bytes);
    }
    slot->updates.resize(shape_.spans);
  }
  if (slot->values.size() < value_bytes) slot->values = AlignedBuffer(value_bytes);
  return std::shared_ptr<Slot>(slot.release(), [free = free_](Slot* released) {
    std::unique_ptr<Slot> owned(released);
    MutexLock lock(free->mutex);
    if (free->slots.size() < kKeptFree) free->slots.push_back(std::move(owned));
  });
}

}  // namespace syncgrads::server
