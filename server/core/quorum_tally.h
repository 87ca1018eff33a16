// The steps of a group with a quorum, as the coordinator decides them one after the
// other.
//
//   undecided ── as many as the quorum takes are complete on every server, and the
//   grace has passed or nobody is left to wait for ──▶ decided: the set is stored,
//   told to all servers, and the next step is undecided

#ifndef SYNCGRADS_SERVER_CORE_QUORUM_TALLY_H_
#define SYNCGRADS_SERVER_CORE_QUORUM_TALLY_H_

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/policy.h"

namespace syncgrads::server {

// Not thread-safe.
class QuorumTally {
 public:
  // `servers` are those that have chunks of the group.
  QuorumTally(const Quorum& quorum, std::set<ServerIndex> servers)
      : quorum_(quorum), servers_(std::move(servers)) {}

  // Of a step that is decided, nothing changes.
  void Arrived(ServerIndex server, Round round, MemberId member);

  // The step that is to be decided next.
  Round next() const { return next_; }
  bool any_decided() const { return next_ > Round{1}; }

  // The set of that step, in the order of `with_data`, if it can be fixed now.
  // `with_data` are the members who have data for it; without those that are
  // `required` it is not fixed.
  std::optional<std::vector<MemberId>> Decide(const std::vector<MemberId>& with_data,
                                              const std::set<MemberId>& required, absl::Time now);

  // The set of a step has been stored.
  void Decided(Round round);

 private:
  const Quorum quorum_;
  const std::set<ServerIndex> servers_;
  Round next_{1};
  // Where each member's contribution is complete; of `next_` and later.
  std::map<Round, std::map<MemberId, std::set<ServerIndex>>> arrived_;
  // When the quorum was reached in `next_`.
  std::optional<absl::Time> reached_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_QUORUM_TALLY_H_
