#include "server/core/membership/departures.h"

#include "absl/strings/str_cat.h"
#include "server/core/plan/seconds.h"

namespace syncgrads::server {

void Departures::Left(MemberId member, Incarnation incarnation, absl::Time now) {
  left_.try_emplace(member, Departure{incarnation, now});
}

std::vector<MemberGone> Departures::TakeOverdue(absl::Time now, absl::Duration timeout) {
  std::vector<MemberGone> overdue;
  for (auto left = left_.begin(); left != left_.end();) {
    const absl::Duration ago = now - left->second.since;
    if (ago < timeout) {
      ++left;
      continue;
    }
    overdue.push_back(
        {left->first,
         left->second.incarnation,
         absl::StrCat("it left ", Seconds(ago),
                      " ago, and the job no longer waits for its missing contributions"),
         /*graceful=*/false,
         {}});
    left = left_.erase(left);
  }
  return overdue;
}

}  // namespace syncgrads::server
