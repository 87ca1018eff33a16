#include "common/membership.h"

#include <algorithm>

namespace syncgrads {

bool Epoch::Has(MemberId id) const {
  return std::any_of(members.begin(), members.end(),
                     [id](const Member& member) { return member.id == id; });
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
