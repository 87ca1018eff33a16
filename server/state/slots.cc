#include "server/state/slots.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/status_macros.h"

namespace syncgrads::server {

SlotPool::SlotPool(SlotShape shape, std::shared_ptr<SlotSource> source, size_t position)
    : shape_(shape), position_(position), free_(std::make_shared<FreeList>()) {
  free_->source = std::move(source);
  if (free_->source == nullptr) return;
  std::vector<StoredSlot> stored = free_->source->SlotsOf(position);
  // Sorted with the newest round first and vacant slots last.
  std::stable_sort(stored.begin(), stored.end(), [](const StoredSlot& a, const StoredSlot& b) {
    if (!a.published.has_value() || !b.published.has_value()) return a.published.has_value();
    return a.published->round > b.published->round;
  });
  const auto keeps = [this](const StoredSlot& one) {
    if (!one.published.has_value() || kept_.size() == shape_.kept) return false;
    return kept_.empty() || Next(one.published->round) == kept_.back().record.round;
  };
  std::vector<std::unique_ptr<Slot>> free;
  for (StoredSlot& one : stored) {
    if (keeps(one)) {
      kept_.push_back({*std::move(one.published), Share(std::move(one.slot))});
    } else {
      free.push_back(std::move(one.slot));
    }
  }
  MutexLock lock(free_->mutex);
  for (auto slot = free.rbegin(); slot != free.rend(); ++slot) {
    // A slot of an Arena has no memory for the residual, which is not shared with workers.
    if ((*slot)->record.empty()) (*slot)->residual = AlignedBuffer(shape_.residual_bytes);
    // The free list is used from its end: the slot of the first set is taken first.
    free_->slots.push_back(std::move(*slot));
  }
}

std::vector<SlotPool::Kept> SlotPool::TakeKept() { return std::exchange(kept_, {}); }

std::shared_ptr<Slot> SlotPool::Share(std::unique_ptr<Slot> slot) const {
  return std::shared_ptr<Slot>(slot.release(), [free = free_](Slot* released) {
    std::unique_ptr<Slot> slot(released);
    MutexLock lock(free->mutex);
    if (slot->arena_offset.has_value() || !slot->record.empty()) {
      free->slots.push_back(std::move(slot));
    } else {
      free->spare.swap(slot);
    }
  });
}

absl::StatusOr<std::shared_ptr<Slot>> SlotPool::Acquire(size_t value_bytes, size_t contributors) {
  SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<Slot> slot, Take(value_bytes, contributors));
  if (!slot->record.empty()) MakeVacant(*slot);
  // Sources size `updates` only for optimizers that have slots, but an optimizer without slots
  // counts its updates too.
  slot->updates.resize(shape_.spans);
  return Share(std::move(slot));
}

std::unique_ptr<Slot> SlotPool::TakeFreeLocked(size_t value_bytes, size_t contributors,
                                               std::vector<std::unique_ptr<Slot>>& idle) {
  const uint64_t number = ++free_->taken;
  std::vector<std::unique_ptr<Slot>>& slots = free_->slots;
  std::optional<size_t> best;
  // From the end: the slot that was returned last may still be in the CPU cache.
  for (size_t i = slots.size(); i-- > 0;) {
    const Slot& one = *slots[i];
    if (one.values.size() < value_bytes) continue;
    if (!one.record.empty() && one.contributors < contributors) continue;
    // A further slot is taken only if there is no other.
    if (one.file != nullptr && best.has_value()) continue;
    best = i;
    if (one.file == nullptr) break;
  }
  std::unique_ptr<Slot> taken;
  if (best.has_value()) {
    taken = std::move(slots[*best]);
    slots.erase(slots.begin() + static_cast<ptrdiff_t>(*best));
    taken->last_taken = number;
  }
  for (size_t i = slots.size(); i-- > 0;) {
    if (slots[i]->file == nullptr || number - slots[i]->last_taken <= kIdleRounds) continue;
    idle.push_back(std::move(slots[i]));
    slots.erase(slots.begin() + static_cast<ptrdiff_t>(i));
  }
  return taken;
}

absl::StatusOr<std::unique_ptr<Slot>> SlotPool::Take(size_t value_bytes, size_t contributors) {
  std::unique_ptr<Slot> slot, spare;
  std::vector<std::unique_ptr<Slot>> idle;
  uint64_t number;
  {
    MutexLock lock(free_->mutex);
    slot = TakeFreeLocked(value_bytes, contributors, idle);
    number = free_->taken;
    if (slot == nullptr) spare = std::move(free_->spare);
  }
  for (const std::unique_ptr<Slot>& one : idle) one->file->Delete();
  if (slot != nullptr) return slot;
  if (spare == nullptr && free_->source != nullptr) {
    SYNCGRADS_ASSIGN_OR_RETURN(slot, free_->source->Another(position_, value_bytes, contributors));
    if (slot != nullptr) {
      slot->last_taken = number;
      return slot;
    }
  }
  slot = std::move(spare);
  if (slot == nullptr) {
    slot = std::make_unique<Slot>();
    for (size_t i = 0; i < shape_.optimizer_slots; ++i) {
      slot->optimizer.emplace_back(shape_.value_bytes);
    }
    slot->residual = AlignedBuffer(shape_.residual_bytes);
  }
  if (slot->values.size() < value_bytes) slot->values = AlignedBuffer(value_bytes);
  return slot;
}

}  // namespace syncgrads::server
