// Which members of an elastic job have the job's state, which newcomers are still behind, and
// whose data has ended.
//
// The states of a member:
//
//   unknown ── Ready ──────────────────────────────────────▶ ready
//   unknown ── enters an epoch as a newcomer ──▶ behind ── Ready ──▶ ready
//
// Newcomers enter an epoch together. No other newcomer enters until all of them are ready, so
// that they all begin at the same rounds.

#ifndef SYNCGRADS_SERVER_CORE_MEMBERSHIP_STATE_HOLDERS_H_
#define SYNCGRADS_SERVER_CORE_MEMBERSHIP_STATE_HOLDERS_H_

#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/signals/membership.h"

namespace syncgrads::server {

// Not thread-safe; owned by a CoordinatedJob and protected by Coordinator::mutex_.
class StateHolders {
 public:
  // The group that members' states belong to; nullopt until a member has reported one.
  std::optional<GroupId> group() const { return group_; }
  // Returns group(). If none is chosen yet, chooses this one.
  GroupId ChooseGroup(GroupId group);

  // The member has its state. Returns whether it was behind.
  bool SetReady(MemberId member);
  bool IsReady(MemberId member) const { return ready_.contains(member); }
  // Whether the member entered an epoch as a newcomer and is not ready yet.
  bool IsBehind(MemberId member) const { return behind_.contains(member); }

  // The member has no more data for `group`.
  void SetEnded(MemberId member, GroupId group);
  // Whether the member has no more data for group().
  bool HasEnded(MemberId member) const { return ended_.contains(member); }

  // Plans how the members of a new epoch that do not have the state get it. `members` are those
  // of the new epoch, in rank order; those that are not in `present` become newcomers. The donor
  // is the first member that is not behind. Nullopt if there is none: the state is lost.
  std::optional<Handover> PlanHandover(const std::vector<MemberId>& members, const Epoch& present,
                                       const std::vector<GroupRound>& first_rounds, absl::Time now);
  // Restores the handover of a stored epoch. Its newcomers have the full time to become ready.
  void Restore(const Handover& handover, absl::Time now);

  // FailedPrecondition if the member is behind for longer than `join_timeout`.
  absl::Status CheckJoined(MemberId member, absl::Time now, absl::Duration join_timeout) const;

  // The member was removed from the job.
  void Forget(MemberId member);

 private:
  std::optional<GroupId> group_;
  std::set<MemberId> ready_;
  std::set<MemberId> behind_;
  std::set<MemberId> ended_;
  // The first rounds of the newest newcomers, and when they entered.
  std::vector<GroupRound> first_rounds_;
  absl::Time since_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_MEMBERSHIP_STATE_HOLDERS_H_
