#include "common/signals/membership.h"

#include <algorithm>

namespace syncgrads {

std::optional<uint32_t> Epoch::RankOf(MemberId id) const {
  for (uint32_t rank = 0; rank < members.size(); ++rank) {
    if (members[rank].id == id) return rank;
  }
  return std::nullopt;
}

std::optional<Round> FindRound(const std::vector<GroupRound>& rounds, GroupId group) {
  const auto found = std::find_if(rounds.begin(), rounds.end(), [group](const GroupRound& listed) {
    return listed.group == group;
  });
  if (found == rounds.end()) return std::nullopt;
  return found->round;
}

const Epoch* FindEpoch(const std::vector<Epoch>& epochs, GroupId group, Round round) {
  for (auto epoch = epochs.rbegin(); epoch != epochs.rend(); ++epoch) {
    const std::optional<Round> first = FindRound(epoch->first_rounds, group);
    if (!first.has_value() || round >= *first) return &*epoch;
  }
  return nullptr;
}

}  // namespace syncgrads
