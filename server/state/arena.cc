#include "server/state/arena.h"

#include <sys/resource.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace syncgrads::server {

absl::StatusOr<std::shared_ptr<Arena>> Arena::Create(const std::string& name,
                                                     absl::Span<const size_t> value_bytes,
                                                     size_t optimizer_slots,
                                                     const AllocationProgress& progress) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && open_ >= limit.rlim_cur / 8) {
    return absl::ResourceExhaustedError(
        absl::StrCat(open_.load(),
                     " groups share their results in memory already, which takes an "
                     "eighth of the ",
                     limit.rlim_cur, " file descriptors of this process"));
  }
  std::vector<size_t> offsets;
  size_t array_bytes = 0;
  for (size_t bytes : value_bytes) {
    offsets.push_back(array_bytes);
    array_bytes += (bytes + AlignedBuffer::kAlignment - 1) / AlignedBuffer::kAlignment *
                   AlignedBuffer::kAlignment;
  }
  SYNCGRADS_ASSIGN_OR_RETURN(
      std::unique_ptr<SharedRegion> region,
      SharedRegion::Create(name, kSets * (1 + optimizer_slots) * array_bytes, progress));
  return std::shared_ptr<Arena>(new Arena(std::move(region), std::move(offsets),
                                          {value_bytes.begin(), value_bytes.end()}, array_bytes,
                                          optimizer_slots));
}

std::unique_ptr<Slot> Arena::MakeSlot(size_t set, size_t position) {
  size_t offset = set * (1 + optimizer_slots_) * array_bytes_ + offsets_[position];
  auto slot = std::make_unique<Slot>();
  slot->values = AlignedBuffer::Borrow(region_->data() + offset, sizes_[position]);
  slot->arena_offset = offset;
  for (size_t i = 0; i < optimizer_slots_; ++i) {
    offset += array_bytes_;
    slot->optimizer.push_back(AlignedBuffer::Borrow(region_->data() + offset, sizes_[position]));
  }
  return slot;
}

std::vector<StoredSlot> Arena::SlotsOf(size_t position) {
  std::vector<StoredSlot> slots;
  for (size_t set = 0; set < kSets; ++set) {
    slots.push_back({MakeSlot(set, position), std::nullopt});
  }
  return slots;
}

}  // namespace syncgrads::server
