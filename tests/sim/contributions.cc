#include "tests/sim/contributions.h"

#include <algorithm>

namespace syncgrads::sim {
namespace {

bool IsAbsent(const Contribution& contribution, size_t span) {
  return std::binary_search(contribution.header.absent_spans.begin(),
                            contribution.header.absent_spans.end(), static_cast<uint32_t>(span));
}

}  // namespace

const std::vector<Contribution>& Contributions::Of(const RoundKey& key, MemberId member) const {
  static const std::vector<Contribution> kNone;
  const auto found = sent_.find({key, member});
  return found == sent_.end() ? kNone : found->second;
}

const Contribution* Contributions::Find(const RoundKey& key, MemberId member, bool one_epoch,
                                        uint64_t epoch) const {
  for (const Contribution& one : Of(key, member)) {
    if (one.header.skip) continue;
    if (!one_epoch || one.header.epoch == epoch || key.round == Round{0}) return &one;
  }
  return nullptr;
}

bool Contributions::HasSkipped(const RoundKey& key, MemberId member) const {
  const std::vector<Contribution>& sent = Of(key, member);
  return delivered(key, member) &&
         std::any_of(sent.begin(), sent.end(), [](const auto& one) { return one.header.skip; });
}

const std::byte* PartOf(const Contribution& contribution, const Chunk& chunk, size_t span) {
  if (IsAbsent(contribution, span)) return nullptr;
  size_t elements = 0;
  for (size_t s = 0; s < span; ++s) {
    if (!IsAbsent(contribution, s)) elements += chunk.spans[s].elements;
  }
  return reinterpret_cast<const std::byte*>(contribution.payload.data()) +
         elements * SizeOf(chunk.dtype);
}

}  // namespace syncgrads::sim
