// What the coordinator decides about the rounds of a job: the contributors of quorum rounds, and
// the norms of a step, which it computes from the servers' sums.

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_ROUND_DECISIONS_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_ROUND_DECISIONS_H_

#include <map>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "common/group/group.h"
#include "common/signals/membership.h"
#include "server/core/coordinator/norm_tally.h"
#include "server/core/coordinator/quorum_tally.h"
#include "server/core/membership/state_holders.h"
#include "server/core/plan/plan_change.h"
#include "server/core/plan/step_norms.h"
#include "server/core/plan_log/job_plan.h"
#include "server/core/rounds/arrivals.h"

namespace syncgrads::server {

// Not thread-safe; owned by a CoordinatedJob and protected by Coordinator::mutex_. The caller
// checks that a report belongs to this generation of the job, and that the job is open.
class RoundDecisions {
 public:
  // Appends decisions to `plan`. Both arguments must outlive this object.
  RoundDecisions(JobPlan& plan, const StateHolders& holders) : plan_(plan), holders_(holders) {}
  RoundDecisions(const RoundDecisions&) = delete;
  RoundDecisions& operator=(const RoundDecisions&) = delete;

  // A group was registered. Prepares decisions for it if its policy is a quorum, or if it needs
  // norms.
  void Add(const std::shared_ptr<const GroupPlan>& plan);
  // Restores a decision or a group; ignores other changes.
  void Restore(const PlanChange& change);

  // Quorum groups: a member's contribution to a round is complete on a server.
  void Arrived(ServerIndex server, const Arrival& arrival);
  // Fixes the sets of the quorum rounds that can be decided now. Requires that the job has begun
  // and that no epoch is proposed: the first rounds of a proposed epoch are not known yet.
  void DecideQuorums(absl::Time now);
  // Moves first rounds behind the quorum steps that are decided. A decided step belongs to the
  // epoch in which it was decided, even if a server has restarted, has lost the contributions
  // to it, and has answered the proposal with that step.
  void PassDecided(std::vector<GroupRound>& first_rounds) const;

  // A chunk on a server waits for norms. If it was the last one, appends the norms.
  void Reduced(ServerIndex server, const ReducedChunk& chunk);
  // Discards what the server has reported with Reduced. It repeats its reports when it
  // reconnects.
  void ForgetReduced(ServerIndex server);

 private:
  // Decides the group's next quorum round. False if it cannot be decided yet.
  bool DecideQuorum(GroupId group, QuorumTally& tally, absl::Time now);

  JobPlan& plan_;
  const StateHolders& holders_;
  std::map<GroupId, QuorumTally> quorums_;
  std::map<GroupId, NormTally> norms_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_ROUND_DECISIONS_H_
