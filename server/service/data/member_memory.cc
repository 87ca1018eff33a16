#include "server/service/data/member_memory.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace syncgrads::server {

absl::Status MemberMemory::Add(uint32_t number, std::shared_ptr<const PeerRegion> region) {
  MutexLock lock(mutex_);
  if (closed_) return absl::OkStatus();
  if (regions_.size() >= kMaxRegions && !regions_.contains(number)) {
    return absl::ResourceExhaustedError(absl::StrCat("region ", number,
                                                     " exceeds the limit: ", kMaxRegions,
                                                     " regions of this worker are already "
                                                     "shared with this server"));
  }
  // `region` takes the replaced region, so that it is unmapped without the lock.
  regions_[number].swap(region);
  return absl::OkStatus();
}

uint64_t MemberMemory::region_bytes() const {
  MutexLock lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& [number, region] : regions_) bytes += region->bytes().size();
  return bytes;
}

void MemberMemory::SetMapped(GroupId group) {
  MutexLock lock(mutex_);
  if (!closed_) mapped_.insert(group);
}

bool MemberMemory::IsMapped(GroupId group) const {
  MutexLock lock(mutex_);
  return mapped_.contains(group);
}

absl::StatusOr<Payload> MemberMemory::Find(const std::vector<SharedPiece>& pieces) const {
  auto regions = std::make_shared<std::vector<std::shared_ptr<const PeerRegion>>>();
  Payload payload;
  MutexLock lock(mutex_);
  for (const SharedPiece& piece : pieces) {
    const auto found = regions_.find(piece.region);
    if (found == regions_.end()) {
      return absl::UnavailableError(absl::StrCat(
          "region ", piece.region, " is not shared with this server; hand it over first"));
    }
    const absl::Span<const std::byte> bytes = found->second->bytes();
    if (piece.offset > bytes.size() || piece.length > bytes.size() - piece.offset) {
      return absl::InvalidArgumentError(absl::StrCat("a payload of ", piece.length, " bytes at ",
                                                     piece.offset, " reaches beyond region ",
                                                     piece.region, " of ", bytes.size(), " bytes"));
    }
    payload.pieces.push_back(bytes.subspan(piece.offset, piece.length));
    if (regions->empty() || regions->back() != found->second) regions->push_back(found->second);
  }
  payload.owner = std::move(regions);
  return payload;
}

bool MemberMemory::Lend(std::shared_ptr<const RoundResult> result) {
  MutexLock lock(mutex_);
  if (closed_) return false;
  std::vector<std::shared_ptr<const RoundResult>>& lent = lent_[{result->group, result->chunk}];
  // A member may ask for the same result again and again.
  if (std::find(lent.begin(), lent.end(), result) == lent.end()) lent.push_back(std::move(result));
  return true;
}

void MemberMemory::TakeBack(GroupId group, ChunkId chunk, Round pushed) {
  // Declared before the lock: results return to their pools without it.
  std::vector<std::shared_ptr<const RoundResult>> returned;
  MutexLock lock(mutex_);
  const auto found = lent_.find({group, chunk});
  if (found == lent_.end()) return;
  std::vector<std::shared_ptr<const RoundResult>>& lent = found->second;
  for (size_t i = 0; i < lent.size();) {
    if (lent[i]->round < pushed) {
      returned.push_back(std::move(lent[i]));
      lent[i] = std::move(lent.back());
      lent.pop_back();
    } else {
      ++i;
    }
  }
}

void MemberMemory::Close() {
  // Declared before the lock: regions are unmapped, and results return to their pools, without it.
  decltype(regions_) regions;
  decltype(lent_) lent;
  MutexLock lock(mutex_);
  closed_ = true;
  regions.swap(regions_);
  lent.swap(lent_);
  mapped_.clear();
}

}  // namespace syncgrads::server
