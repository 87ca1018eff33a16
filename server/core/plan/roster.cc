#include "server/core/plan/roster.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/planted_bug.h"

namespace syncgrads::server {

absl::Status Roster::Entry::Refusal() const {
  const std::string why = absl::StrCat("worker \"", member.name, "\" was dropped: ", gone_reason);
  return evicted ? absl::AbortedError(why)
                 : absl::FailedPreconditionError(absl::StrCat(why, "; rejoin"));
}

bool Roster::Entry::HasEnded(GroupId group, Round round) const {
  const auto ending = ended.find(group);
  return ending != ended.end() &&
         (round > ending->second.last_round || IsPlanted(PlantedBug::kEndOvertakesItsPushes));
}

bool Roster::Entry::HasData(GroupId group, Round round) const {
  // No contribution of a dropped member will arrive any more. A member that left gracefully has
  // named the last round of every group in which it took part.
  if (gone && !(left_gracefully && ended.contains(group))) return false;
  return !HasEnded(group, round);
}

bool Roster::Entry::Follows(GroupId group, Round round) const {
  return !gone && HasEnded(group, round) && ended.at(group).follows;
}

bool HasNoRounds(const Epoch& epoch, const Epoch& next) {
  std::map<GroupId, Round> firsts;
  for (const GroupRound& first : epoch.first_rounds) firsts[first.group] = first.round;
  return std::all_of(next.first_rounds.begin(), next.first_rounds.end(), [&](GroupRound first) {
    // A group that was registered in the epoch has begun with round 0.
    const auto before = firsts.find(first.group);
    return first.round <= (before == firsts.end() ? Round{0} : before->second);
  });
}

void Roster::Add(const Epoch& epoch) {
  const bool is_replaced = !epochs_.empty() && HasNoRounds(epochs_.back(), epoch);
  if (is_replaced) epochs_.pop_back();
  epochs_.push_back(epoch);
  for (const Member& member : epoch.members) members_[member.id].member = member;
  if (is_replaced) ForgetBefore(0);
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
  entry.left_gracefully = gone.graceful;
  entry.gone_reason = gone.reason;
  entry.evicted = gone.evicted;
  for (const GroupRound& last : gone.last_rounds) {
    auto [ending, added] = entry.ended.try_emplace(last.group, Ending{last.round, false});
    if (!added) ending->second.last_round = std::min(ending->second.last_round, last.round);
  }
}

void Roster::Forget(const std::vector<GroupRound>& open) {
  if (epochs_.empty()) return;
  const Epoch* oldest = &epochs_.back();
  for (const GroupRound& one : open) {
    const Epoch* epoch = FindEpoch(epochs_, one.group, one.round);
    if (epoch == nullptr) return;
    oldest = std::min(oldest, epoch);
  }
  ForgetBefore(static_cast<size_t>(oldest - epochs_.data()));
}

void Roster::KeepNewest(size_t epochs) {
  if (epochs_.size() > epochs) ForgetBefore(epochs_.size() - epochs);
}

void Roster::ForgetBefore(size_t first) {
  epochs_.erase(epochs_.begin(), epochs_.begin() + static_cast<ptrdiff_t>(first));
  // An evicted worker stays listed, so that it is refused with the reason of its eviction.
  size_t evicted = 0;
  for (auto next = members_.end(); next != members_.begin();) {
    const auto entry = std::prev(next);
    const bool is_past = entry->second.gone &&
                         std::none_of(epochs_.begin(), epochs_.end(), [entry](const Epoch& epoch) {
                           return epoch.Has(entry->first);
                         });
    const bool stays = !is_past || (entry->second.evicted && ++evicted <= kMaxEvicted);
    next = stays ? entry : members_.erase(entry);
  }
}

const Roster::Entry* Roster::Find(MemberId id) const {
  const auto entry = members_.find(id);
  return entry == members_.end() ? nullptr : &entry->second;
}

std::string Roster::NameOf(MemberId id) const {
  const Entry* entry = Find(id);
  return entry == nullptr ? absl::StrCat("member ", ToNumber(id)) : entry->member.name;
}

Round Roster::LastRoundBeforeNextEpoch(GroupId group, Round round) const {
  std::optional<Round> next;
  for (const Epoch& epoch : epochs_) {
    const std::optional<Round> first = FindRound(epoch.first_rounds, group);
    if (first.has_value() && *first > round) next = std::min(next.value_or(*first), *first);
  }
  return next.has_value() ? Previous(*next) : round;
}

const Epoch* Roster::EpochOf(GroupId group, Round round) const {
  if (IsPlanted(PlantedBug::kEpochAppliedByArrival)) return newest_epoch();
  return FindEpoch(epochs_, group, round);
}

}  // namespace syncgrads::server
