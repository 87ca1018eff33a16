#include "worker/train/pinned_results.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace syncgrads {

PinnedResults::~PinnedResults() {
  for (const Memory& memory : memory_) {
    if (memory.is_pinned) device_.Unpin(memory.results.bytes.data());
  }
}

bool PinnedResults::Has(absl::Span<const std::byte> piece) {
  const Memory* memory = Find(piece);
  if (memory == nullptr) {
    Refresh();
    memory = Find(piece);
  }
  return memory != nullptr && memory->is_pinned;
}

const PinnedResults::Memory* PinnedResults::Find(absl::Span<const std::byte> piece) const {
  for (const Memory& memory : memory_) {
    const absl::Span<const std::byte> bytes = memory.results.bytes;
    // Addresses, because the two may be of different objects.
    const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
    const auto at = reinterpret_cast<uintptr_t>(piece.data());
    if (at >= begin && at - begin < bytes.size()) return &memory;
  }
  return nullptr;
}

void PinnedResults::Refresh() {
  std::vector<Memory> now;
  for (Group::SharedResults& results : group_.FindSharedResults()) {
    const auto known = std::find_if(memory_.begin(), memory_.end(), [&](const Memory& memory) {
      return memory.results.owner == results.owner;
    });
    if (known != memory_.end()) {
      now.push_back(std::move(*known));
      memory_.erase(known);
      continue;
    }
    const absl::Span<const std::byte> bytes = results.bytes;
    const bool is_pinned = device_.PinForReading(bytes.data(), bytes.size()).ok();
    now.push_back({std::move(results), is_pinned});
  }
  for (const Memory& unused : memory_) {
    if (unused.is_pinned) device_.Unpin(unused.results.bytes.data());
  }
  memory_ = std::move(now);
}

}  // namespace syncgrads
