// The members of each round of a job, according to the plan changes applied so far.
//
// Membership depends on the round, not on the time at which a server receives a change: a round
// belongs to the epoch that covers it, and a member's end or leave names the last round that
// the member contributes to.

#ifndef SYNCGRADS_SERVER_CORE_PLAN_ROSTER_H_
#define SYNCGRADS_SERVER_CORE_PLAN_ROSTER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/signals/membership.h"

namespace syncgrads::server {

// A member has no more data for a group after `last_round`.
struct MemberEnded {
  MemberId member{};
  GroupId group{};
  Round last_round{};
  // The member still requests the results of later rounds.
  bool follows = true;
};

// A job has at most so many evicted workers that were not readmitted.
inline constexpr size_t kMaxEvicted = 1024;

// A member left, or was dropped.
struct MemberGone {
  MemberId member{};
  Incarnation incarnation{};
  std::string reason;
  // The member left gracefully: its contributions up to `last_rounds` have been sent, and may be
  // in flight.
  bool graceful = false;
  std::vector<GroupRound> last_rounds;
  // An operator dropped the member for the lifetime of the job.
  bool evicted = false;
};

// Returns whether no round belongs to an epoch when `next` follows it: `next` begins with the same
// round of each group, or an earlier one.
bool HasNoRounds(const Epoch& epoch, const Epoch& next);

// A value type; not thread-safe. A Job copies its roster for every change and shares the newest
// copy read-only with its chunks. A CoordinatedJob changes its own in place.
class Roster {
 public:
  // The end of a member's data in one group.
  struct Ending {
    Round last_round;
    bool follows;
  };
  // One member.
  struct Entry {
    Member member;
    // The member left or was dropped.
    bool gone = false;
    // The member left gracefully: rounds up to its last ones still wait for its contributions.
    bool left_gracefully = false;
    std::string gone_reason;
    bool evicted = false;
    std::map<GroupId, Ending> ended;

    // The error for a member that was dropped: Aborted if it was evicted, otherwise
    // FailedPrecondition, after which it may rejoin.
    absl::Status Refusal() const;
    // Whether the round waits for this member's contribution, according to the changes so far.
    bool HasData(GroupId group, Round round) const;
    // Whether the member's data ended before this round.
    bool HasEnded(GroupId group, Round round) const;
    // Whether the member has not gone, its data ended before this round, and it still requests
    // results.
    bool Follows(GroupId group, Round round) const;
  };

  // If no round belongs to the newest epoch any more, it is removed, and then members as Forget
  // does. So epochs that begin one after the other while a round is open, as when the learning rate
  // is changed again and again, take the memory of one.
  void Add(const Epoch& epoch);
  void End(const MemberEnded& ended);
  void Remove(const MemberGone& gone);

  // Removes the epochs before all rounds in `open`, and then the members that have gone and are
  // in no remaining epoch, except the newest kMaxEvicted evicted ones. `open`: for each group, the
  // oldest round whose epoch is still needed. If the epoch of one of them is unknown, nothing is
  // removed.
  void Forget(const std::vector<GroupRound>& open);
  // Removes all but the newest `epochs` epochs, and then members as Forget does.
  void KeepNewest(size_t epochs);

  // Null if the member was in no epoch, or was removed.
  const Entry* Find(MemberId id) const;
  // The worker's name; "member 5" if Find returns null.
  std::string NameOf(MemberId id) const;

  // The epoch that the round belongs to; null before the first epoch, and if the round's epoch
  // was removed.
  const Epoch* EpochOf(GroupId group, Round round) const;
  // The last round of `group` before the next epoch that begins after `round`; `round` itself if
  // there is no such epoch.
  Round LastRoundBeforeNextEpoch(GroupId group, Round round) const;
  // The number of the oldest epoch that was not removed; 0 before the first epoch.
  uint64_t oldest_epoch() const { return epochs_.empty() ? 0 : epochs_.front().number; }
  // Null before the first epoch.
  const Epoch* newest_epoch() const { return epochs_.empty() ? nullptr : &epochs_.back(); }

 private:
  // Removes the epochs before the one with this index, and then members as Forget does.
  void ForgetBefore(size_t first);

  std::vector<Epoch> epochs_;
  std::map<MemberId, Entry> members_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_PLAN_ROSTER_H_
