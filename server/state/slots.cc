#include "server/state/slots.h"

#include <utility>

namespace syncgrads::server {

SlotPool::SlotPool(SlotShape shape, std::shared_ptr<Arena> arena, size_t position)
    : shape_(shape), free_(std::make_shared<FreeList>()) {
  free_->arena = std::move(arena);
  if (free_->arena == nullptr) return;
  MutexLock lock(free_->mutex);
  // The last is taken first: the one that begins the arena.
  for (size_t set = Arena::kSets; set-- > 0;) {
    free_->in_arena.push_back(free_->arena->MakeSlot(set, position));
    free_->in_arena.back()->updates.resize(shape_.spans);
  }
}

std::shared_ptr<Slot> SlotPool::Acquire(size_t value_bytes) {
  return std::shared_ptr<Slot>(Take(value_bytes).release(), [free = free_](Slot* released) {
    std::unique_ptr<Slot> slot(released);
    MutexLock lock(free->mutex);
    if (slot->arena_offset.has_value()) {
      free->in_arena.push_back(std::move(slot));
    } else {
      free->spare.swap(slot);
    }
  });
}

std::unique_ptr<Slot> SlotPool::Take(size_t value_bytes) {
  std::unique_ptr<Slot> slot;
  {
    MutexLock lock(free_->mutex);
    if (!free_->in_arena.empty() && free_->in_arena.back()->values.size() >= value_bytes) {
      slot = std::move(free_->in_arena.back());
      free_->in_arena.pop_back();
      return slot;
    }
    slot = std::move(free_->spare);
  }
  if (slot == nullptr) {
    slot = std::make_unique<Slot>();
    for (size_t i = 0; i < shape_.optimizer_slots; ++i) {
      slot->optimizer.emplace_back(shape_.value_bytes);
    }
    slot->updates.resize(shape_.spans);
  }
  if (slot->values.size() < value_bytes) slot->values = AlignedBuffer(value_bytes);
  return slot;
}

}  // namespace syncgrads::server
