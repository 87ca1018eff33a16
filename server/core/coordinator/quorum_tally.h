// Decides which members' contributions count in each step of a group with a quorum. The
// coordinator decides one step after the other.
//
//   undecided ── the contributions of `least` members, or of all with data if they are fewer,
//   are complete on every server; and the grace period has ended, or no member with data is
//   missing ──▶ decided: the set is stored and sent to all servers, and the next step is
//   undecided

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_QUORUM_TALLY_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_QUORUM_TALLY_H_

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/time/time.h"
#include "common/group/policy.h"
#include "common/ids.h"

namespace syncgrads::server {

// Not thread-safe; owned by a job's RoundDecisions and protected by Coordinator::mutex_.
class QuorumTally {
 public:
  // `servers`: the servers that have chunks of the group.
  QuorumTally(const Quorum& quorum, std::set<ServerIndex> servers)
      : quorum_(quorum), servers_(std::move(servers)) {}

  // The member's contribution to this round is complete on this server. Ignored for a step that
  // is decided, and for one that no member can have reached.
  void Arrived(ServerIndex server, Round round, MemberId member);

  // The next step to decide.
  Round next() const { return next_; }
  bool any_decided() const { return next_ > Round{1}; }

  // The set of the step next(), in the order of `with_data`; nullopt if it cannot be fixed yet.
  // `with_data`: the members that have data for the step. `required`: members that the set must
  // include.
  std::optional<std::vector<MemberId>> Decide(const std::vector<MemberId>& with_data,
                                              const std::set<MemberId>& required, absl::Time now);

  // The step is decided, or needs no decision; so are all earlier ones.
  void Decided(Round round);

 private:
  const Quorum quorum_;
  const std::set<ServerIndex> servers_;
  Round next_{1};
  // For `next_` and later rounds, the servers on which each member's contribution is complete.
  std::map<Round, std::map<MemberId, std::set<ServerIndex>>> arrived_;
  // When the quorum of `next_` was reached; the grace period begins then.
  std::optional<absl::Time> reached_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_QUORUM_TALLY_H_
