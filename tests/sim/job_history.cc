#include "tests/sim/job_history.h"

#include <algorithm>
#include <optional>

namespace syncgrads::sim {

bool Gone::MayContribute(GroupId group, Round round) const {
  const std::optional<Round> last = FindRound(last_rounds, group);
  return graceful && last.has_value() && round <= *last;
}

const GroupPlan* JobHistory::Find(GroupId group) const {
  const auto found = groups.find(group);
  return found == groups.end() ? nullptr : found->second.get();
}

const Epoch* JobHistory::EpochOf(GroupId group, Round round) const {
  // Does not use the servers' own search, because that is under test.
  const Epoch* found = nullptr;
  for (const Epoch& epoch : epochs) {
    const std::optional<Round> first = FindRound(epoch.first_rounds, group);
    if (!first.has_value() || *first <= round) found = &epoch;
  }
  return found;
}

bool JobHistory::IsNewcomer(MemberId member) const {
  if (epochs.empty() || !epochs.back().Has(member)) return true;
  const std::optional<Handover>& handover = epochs.back().handover;
  return handover.has_value() &&
         std::find(handover->to.begin(), handover->to.end(), member) != handover->to.end();
}

bool JobHistory::HasData(GroupId group, Round round, MemberId member) const {
  const auto left = gone.find(member);
  if (left != gone.end() && !left->second.MayContribute(group, round)) return false;
  const auto ending = ended.find(member);
  if (ending == ended.end()) return true;
  const auto last = ending->second.find(group);
  return last == ending->second.end() || round <= last->second;
}

const std::vector<MemberId>* JobHistory::SetOf(GroupId group, Round round) const {
  const auto of_group = sets.find(group);
  if (of_group == sets.end()) return nullptr;
  const auto found = of_group->second.find(round);
  return found == of_group->second.end() ? nullptr : &found->second;
}

}  // namespace syncgrads::sim
