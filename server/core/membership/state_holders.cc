#include "server/core/membership/state_holders.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/plan/seconds.h"

namespace syncgrads::server {

GroupId StateHolders::ChooseGroup(GroupId group) {
  if (!group_.has_value()) group_ = group;
  return *group_;
}

bool StateHolders::SetReady(MemberId member) {
  ready_.insert(member);
  return behind_.erase(member) > 0;
}

void StateHolders::SetEnded(MemberId member, GroupId group) {
  if (group == group_) ended_.insert(member);
}

std::optional<Handover> StateHolders::PlanHandover(const std::vector<MemberId>& members,
                                                   const Epoch& present,
                                                   const std::vector<GroupRound>& first_rounds,
                                                   absl::Time now) {
  std::optional<MemberId> donor;
  std::vector<MemberId> to;
  for (MemberId member : members) {
    if (!present.Has(member)) {
      behind_.insert(member);
      first_rounds_ = first_rounds;
      since_ = now;
    }
    if (IsBehind(member)) {
      to.push_back(member);
    } else if (!donor.has_value()) {
      donor = member;
    }
  }
  if (!donor.has_value()) return std::nullopt;
  return Handover{*donor, std::move(to), first_rounds_};
}

void StateHolders::Restore(const Handover& handover, absl::Time now) {
  first_rounds_ = handover.rounds;
  since_ = now;
  behind_.insert(handover.to.begin(), handover.to.end());
}

absl::Status StateHolders::CheckJoined(MemberId member, absl::Time now,
                                       absl::Duration join_timeout) const {
  if (!IsBehind(member) || now - since_ <= join_timeout) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("it did not receive the job's state within ", Seconds(join_timeout)));
}

void StateHolders::Forget(MemberId member) {
  ready_.erase(member);
  behind_.erase(member);
  ended_.erase(member);
}

}  // namespace syncgrads::server
