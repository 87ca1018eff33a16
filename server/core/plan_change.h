// What the coordinator tells every server, itself included, about its jobs.

#ifndef SYNCGRADS_SERVER_CORE_PLAN_CHANGE_H_
#define SYNCGRADS_SERVER_CORE_PLAN_CHANGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "common/group.h"
#include "common/membership.h"
#include "server/core/roster.h"
#include "server/core/step_norms.h"

namespace syncgrads::server {

struct JobOpened {
  std::string token;
};
// A new epoch is to come: hold rounds that nobody has contributed to.
struct EpochProposed {
  uint64_t number = 0;
  // What the job waits for meanwhile, in words, if it is more than the answers.
  std::string held_for;
};
struct JobClosed {
  std::string reason;
  // No other job is open on the coordinator.
  bool last = false;
};

// A round of a group with a quorum closes with the contributions of these members. It
// takes the place of those of earlier rounds: they have closed on every server, or
// nobody could have contributed to this one.
struct QuorumSet {
  GroupId group{};
  Round round{};
  std::vector<MemberId> members;
};

struct PlanChange {
  // Counts from 1 over all jobs of a plan, without gaps but for those QuorumSets and
  // StepNorms that another has taken the place of.
  uint64_t sequence = 0;
  std::string job;
  Generation generation{};
  std::variant<JobOpened, std::shared_ptr<const GroupPlan>, EpochProposed, Epoch, MemberEnded,
               MemberGone, JobClosed, QuorumSet, StepNorms>
      kind;
  // Which plan the sequence belongs to; see PlanStart.
  uint64_t plan = 0;
};

// What a server holds for an epoch that was proposed: of each group the oldest
// round that nobody there has contributed to, and those after it.
struct HeldRounds {
  std::string job;
  // Of the proposal.
  uint64_t sequence = 0;
  std::vector<GroupRound> rounds;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_PLAN_CHANGE_H_
