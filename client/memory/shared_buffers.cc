#include "client/memory/shared_buffers.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/status_macros.h"

namespace syncgrads::client {

absl::StatusOr<const SharedBuffers::Region*> SharedBuffers::Allocate(size_t bytes) {
  SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<SharedRegion> memory,
                             SharedRegion::Create("syncgrads-gradients", bytes));
  const std::byte* const begin = memory->data();
  const Region* region = nullptr;
  std::function<void()> listener;
  {
    MutexLock lock(mutex_);
    region = &regions_.emplace(begin, Region{next_++, std::move(memory)}).first->second;
    listener = listener_;
  }
  if (listener) listener();
  return region;
}

void SharedBuffers::SetListener(std::function<void()> listener) {
  MutexLock lock(mutex_);
  listener_ = std::move(listener);
}

std::optional<SharedPiece> SharedBuffers::Find(absl::Span<const std::byte> bytes) const {
  MutexLock lock(mutex_);
  auto after = regions_.upper_bound(bytes.data());
  if (after == regions_.begin()) return std::nullopt;
  const Region& region = std::prev(after)->second;
  const size_t offset = static_cast<size_t>(bytes.data() - region.memory->data());
  if (offset > region.memory->size() || bytes.size() > region.memory->size() - offset) {
    return std::nullopt;
  }
  return SharedPiece{region.number, offset, bytes.size()};
}

std::vector<const SharedBuffers::Region*> SharedBuffers::From(uint32_t first) const {
  std::vector<const Region*> found;
  MutexLock lock(mutex_);
  for (const auto& [begin, region] : regions_) {
    if (region.number >= first) found.push_back(&region);
  }
  std::sort(found.begin(), found.end(),
            [](const Region* a, const Region* b) { return a->number < b->number; });
  return found;
}

}  // namespace syncgrads::client
