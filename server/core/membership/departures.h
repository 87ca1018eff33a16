// Members that have left gracefully, until their last contributions must have arrived.
//
// A member that leaves names its last round of each group. Rounds up to these still wait for
// its contributions, which may be in flight. A contribution that has not arrived within a
// lease is lost or was never sent. The member then counts as dropped, and no round waits for
// it any more. Contributions that have arrived still count.

#ifndef SYNCGRADS_SERVER_CORE_MEMBERSHIP_DEPARTURES_H_
#define SYNCGRADS_SERVER_CORE_MEMBERSHIP_DEPARTURES_H_

#include <map>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "server/core/plan/roster.h"

namespace syncgrads::server {

// Not thread-safe; owned by a CoordinatedJob and protected by Coordinator::mutex_.
class Departures {
 public:
  // The member has left at `now`. If it is recorded already, the earlier time is kept.
  void Left(MemberId member, Incarnation incarnation, absl::Time now);
  // The member was dropped after it had left.
  void Forget(MemberId member) { left_.erase(member); }

  // Returns a MemberGone that is not graceful for each member that left `timeout` ago or longer.
  // Each is returned once.
  std::vector<MemberGone> TakeOverdue(absl::Time now, absl::Duration timeout);

 private:
  struct Departure {
    Incarnation incarnation{};
    absl::Time since;
  };
  std::map<MemberId, Departure> left_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_MEMBERSHIP_DEPARTURES_H_
