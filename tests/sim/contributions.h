// What workers have contributed: each push as its worker sent it, and whether a server
// that may count it has had it.

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
#include "common/group.h"
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
  // All of it, as it was sent.
  std::string bytes;
};

class Contributions {
 public:
  void Add(const RoundKey& key, MemberId member, Contribution contribution) {
    sent_[{key, member}].push_back(std::move(contribution));
  }
  // A server has got one that it may count.
  void Deliver(const RoundKey& key, MemberId member) { delivered_.insert({key, member}); }
  bool delivered(const RoundKey& key, MemberId member) const {
    return delivered_.contains({key, member});
  }

  // All that a member has sent for a round: more than one only where they were made
  // for different epochs.
  const std::vector<Contribution>& Of(const RoundKey& key, MemberId member) const;
  // The one that can count; null if there are only skips. Of a group of one epoch it
  // has to be made in this `epoch`.
  const Contribution* Find(const RoundKey& key, MemberId member, bool one_epoch = false,
                           uint64_t epoch = 0) const;
  // A skip has come to a server that may count it.
  bool HasSkipped(const RoundKey& key, MemberId member) const;

 private:
  std::map<std::pair<RoundKey, MemberId>, std::vector<Contribution>> sent_;
  std::set<std::pair<RoundKey, MemberId>> delivered_;
};

// One contribution's part of a span; null if it has none.
const std::byte* PartOf(const Contribution& contribution, const Chunk& chunk, size_t span);

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_CONTRIBUTIONS_H_
