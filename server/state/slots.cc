#include "server/state/slots.h"

#include <algorithm>
#include <utility>

#include "common/status_macros.h"

namespace syncgrads::server {

SlotPool::SlotPool(SlotShape shape, std::shared_ptr<SlotSource> source, size_t position)
    : shape_(shape), position_(position), free_(std::make_shared<FreeList>()) {
  free_->source = std::move(source);
  if (free_->source == nullptr) return;
  std::vector<StoredSlot> stored = free_->source->SlotsOf(position);
  // Newest first; vacant ones last.
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
    // A slot that is not kept has only the arrays that are shared; the shape says what
    // else it needs.
    if ((*slot)->record.empty()) (*slot)->residual = AlignedBuffer(shape_.residual_bytes);
    // The last is taken first: the one that begins the memory.
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
  // Wherever it comes from, the shape says how many spans count their updates: those of
  // an optimizer without slots do as well.
  slot->updates.resize(shape_.spans);
  return Share(std::move(slot));
}

absl::StatusOr<std::unique_ptr<Slot>> SlotPool::Take(size_t value_bytes, size_t contributors) {
  std::unique_ptr<Slot> slot;
  {
    MutexLock lock(free_->mutex);
    // The one that was let go of last: it may still be in the cache.
    for (size_t i = free_->slots.size(); i-- > 0;) {
      const Slot& one = *free_->slots[i];
      if (one.values.size() < value_bytes) continue;
      if (!one.record.empty() && one.contributors < contributors) continue;
      slot = std::move(free_->slots[i]);
      free_->slots.erase(free_->slots.begin() + static_cast<ptrdiff_t>(i));
      return slot;
    }
    slot = std::move(free_->spare);
  }
  if (slot == nullptr && free_->source != nullptr) {
    SYNCGRADS_ASSIGN_OR_RETURN(slot, free_->source->Another(position_, value_bytes, contributors));
    if (slot != nullptr) return slot;
  }
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
