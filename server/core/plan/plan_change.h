// The changes of the plan. The coordinator sends them to every server, server 0 included.

#ifndef SYNCGRADS_SERVER_CORE_PLAN_PLAN_CHANGE_H_
#define SYNCGRADS_SERVER_CORE_PLAN_PLAN_CHANGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "common/group/group.h"
#include "common/signals/membership.h"
#include "server/core/plan/roster.h"
#include "server/core/plan/step_norms.h"

namespace syncgrads::server {

// A job begins. `token` is the hash of its secret (HashSecret), which workers must present; empty
// if it has none. An earlier version has stored the secret itself.
struct JobOpened {
  std::string token;
};
// A new epoch is proposed. A server holds the rounds that have no contribution there: it does not
// close them before the epoch begins. It answers with the oldest of them (OpenRounds).
struct EpochProposed {
  uint64_t number = 0;
  // For messages: the reason why the job waits, if it waits for more than the servers' answers.
  std::string held_for;
};
// A job ends.
struct JobClosed {
  std::string reason;
  // No other job is open on the coordinator, and the servers may exit.
  bool last = false;
  // Only in a follower's own store: this server has given the job up because it could not store
  // a change. The coordinator has not closed the job yet.
  bool given_up = false;
};

// A round of a group with a quorum closes with the contributions of these members. It replaces
// the sets of earlier rounds. These rounds have closed on every server: before that, no member
// can have contributed to this one.
struct QuorumSet {
  GroupId group{};
  Round round{};
  std::vector<MemberId> members;
};

// One change of one job.
struct PlanChange {
  // Counts from 1 over all jobs of a plan. After a restart of the coordinator there may be gaps:
  // changes that were no longer needed are gone; see CompactPlan.
  uint64_t sequence = 0;
  std::string job;
  Generation generation{};
  std::variant<JobOpened, std::shared_ptr<const GroupPlan>, EpochProposed, Epoch, MemberEnded,
               MemberGone, JobClosed, QuorumSet, StepNorms>
      kind;
  // The plan that the sequence number belongs to; see PlanStart.
  uint64_t plan = 0;
  // For a group's plan: the key of the preparation of its memory; 0 if it was not prepared.
  uint64_t prepared = 0;

  // For a group's plan: identifies the memory and the state file of the group's results.
  uint64_t results_key() const { return prepared != 0 ? prepared : sequence; }
};

// The rounds that a server holds for a proposed epoch: for each group, the oldest round that has
// no contribution there, and all later ones.
struct HeldRounds {
  std::string job;
  // The number of the EpochProposed change.
  uint64_t sequence = 0;
  // The oldest held round of each group.
  std::vector<GroupRound> rounds;
};

// A server has given a job up because it could not store a change of it, or has found its state
// damaged (DataLoss).
struct StoreFailure {
  std::string job;
  Generation generation{};
  absl::Status error;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_PLAN_PLAN_CHANGE_H_
