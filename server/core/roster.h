// Who takes part in which round of a job, as a server knows it.
//
// Membership is a function of the round, not of the moment news arrives: a round
// belongs to the epoch that covers it, and an end or a leave names the last round
// that its member contributes to.

#ifndef SYNCGRADS_SERVER_CORE_ROSTER_H_
#define SYNCGRADS_SERVER_CORE_ROSTER_H_

#include <map>
#include <string>
#include <vector>

#include "common/ids.h"
#include "common/membership.h"

namespace syncgrads::server {

// A member has no more data for a group after `last_round`.
struct MemberEnded {
  MemberId member{};
  GroupId group{};
  Round last_round{};
  // It goes on asking for the results of later rounds.
  bool follows = true;
};

// A member left, or was dropped.
struct MemberGone {
  MemberId member{};
  Incarnation incarnation{};
  std::string reason;
  // It left in order: contributions up to `last_rounds` are on their way.
  bool in_order = false;
  std::vector<GroupRound> last_rounds;
};

// A value: copied for every change, and shared read-only.
class Roster {
 public:
  struct Ending {
    Round last_round;
    bool follows;
  };
  struct Entry {
    Member member;
    bool gone = false;
    // It left: what it contributed up to its last rounds is still waited for.
    bool left_in_order = false;
    std::string gone_reason;
    std::map<GroupId, Ending> ended;

    // Whether the member has data for this round, as far as is known: it is
    // waited for.
    bool HasData(GroupId group, Round round) const;
    // Whether its data ended before this round.
    bool HasEnded(GroupId group, Round round) const;
    // Whether it is alive, has ended before this round, and asks for results.
    bool Follows(GroupId group, Round round) const;
  };

  void Add(const Epoch& epoch);
  void End(const MemberEnded& ended);
  void Remove(const MemberGone& gone);

  // Null for a member of no epoch.
  const Entry* Find(MemberId id) const;

  // The epoch whose members a round is closed by; null before the first.
  const Epoch* EpochOf(GroupId group, Round round) const;
  // Null before the first.
  const Epoch* newest_epoch() const { return epochs_.empty() ? nullptr : &epochs_.back(); }

 private:
  std::vector<Epoch> epochs_;
  std::map<MemberId, Entry> members_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROSTER_H_
