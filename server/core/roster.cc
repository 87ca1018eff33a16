#include "server/core/roster.h"

#include <algorithm>

namespace syncgrads::server {

bool Roster::Entry::HasEnded(GroupId group, Round round) const {
  const auto ending = ended.find(group);
  return ending != ended.end() && round > ending->second.last_round;
}

bool Roster::Entry::HasData(GroupId group, Round round) const {
  // Of a member that was dropped, what has not arrived is not coming. One that
  // left knows all groups it took part in.
  if (gone && !(left_in_order && ended.contains(group))) return false;
  return !HasEnded(group, round);
}

bool Roster::Entry::Follows(GroupId group, Round round) const {
  return !gone && HasEnded(group, round) && ended.at(group).follows;
}

void Roster::Add(const Epoch& epoch) {
  epochs_.push_back(epoch);
  for (const Member& member : epoch.members) members_[member.id].member = member;
}

void Roster::End(const MemberEnded& ended) {
  const auto entry = members_.find(ended.member);
  if (entry == members_.end()) return;
  entry->second.ended[ended.group] = {ended.last_round, ended.follows};
}

void Roster::Remove(const MemberGone& gone) {
  const auto found = members_.find(gone.member);
  if (found == members_.end()) return;
  Entry& entry = found->second;
  entry.gone = true;
  entry.left_in_order = gone.in_order;
  entry.gone_reason = gone.reason;
  for (const GroupRound& last : gone.last_rounds) {
    auto [ending, added] = entry.ended.try_emplace(last.group, Ending{last.round, false});
    if (!added) ending->second.last_round = std::min(ending->second.last_round, last.round);
  }
}

const Roster::Entry* Roster::Find(MemberId id) const {
  const auto entry = members_.find(id);
  return entry == members_.end() ? nullptr : &entry->second;
}

const Epoch* Roster::EpochOf(GroupId group, Round round) const {
  return FindEpoch(epochs_, group, round);
}

}  // namespace syncgrads::server
