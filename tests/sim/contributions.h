// Records the contributions of workers: each push as its worker sent it, and whether it was
// delivered to a server that may count it. Not thread-safe.

#ifndef SYNCGRADS_TESTS_SIM_CONTRIBUTIONS_H_
#define SYNCGRADS_TESTS_SIM_CONTRIBUTIONS_H_

#include <compare>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/group/group.h"
#include "common/ids.h"
#include "common/wire/frame.h"

namespace syncgrads::sim {

struct RoundKey {
  Generation generation{};
  GroupId group{};
  ChunkId chunk{};
  Round round{};

  friend auto operator<=>(const RoundKey&, const RoundKey&) = default;
};

inline RoundKey KeyOf(const PushHeader& header) {
  return {header.generation, header.group, header.chunk, header.round};
}

inline std::string ToString(const RoundKey& key) {
  return absl::StrCat("generation ", ToNumber(key.generation), ", group ", ToNumber(key.group),
                      ", chunk ", ToNumber(key.chunk), ", round ", ToNumber(key.round));
}

struct Contribution {
  PushHeader header;
  std::string payload;
  // The whole message as it was sent.
  std::string bytes;
};

class Contributions {
 public:
  void Add(const RoundKey& key, MemberId member, Contribution contribution) {
    sent_[{key, member}].push_back(std::move(contribution));
  }
  // Records that a contribution was delivered to a server that may count it.
  void Deliver(const RoundKey& key, MemberId member) { delivered_.insert({key, member}); }
  bool delivered(const RoundKey& key, MemberId member) const {
    return delivered_.contains({key, member});
  }

  // Returns all pushes that a member has sent for a round. There is more than one only if they were
  // made for different epochs, or if one is a skip.
  const std::vector<Contribution>& Of(const RoundKey& key, MemberId member) const;
  // Returns the contribution that can count; null if the member has sent only skips. If `one_epoch`
  // is set, the contribution must have been made in `epoch`.
  const Contribution* Find(const RoundKey& key, MemberId member, bool one_epoch = false,
                           uint64_t epoch = 0) const;
  // Returns true if a skip of this member was delivered to a server that may count it.
  bool HasSkipped(const RoundKey& key, MemberId member) const;

 private:
  std::map<std::pair<RoundKey, MemberId>, std::vector<Contribution>> sent_;
  std::set<std::pair<RoundKey, MemberId>> delivered_;
};

// Returns the contribution's elements of a span; null if the span is absent.
const std::byte* PartOf(const Contribution& contribution, const Chunk& chunk, size_t span);

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_CONTRIBUTIONS_H_
