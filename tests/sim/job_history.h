// The stored history of one generation of a job: by its coordinator, and by each server about
// members that have gone.

#ifndef SYNCGRADS_TESTS_SIM_JOB_HISTORY_H_
#define SYNCGRADS_TESTS_SIM_JOB_HISTORY_H_

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/group/group.h"
#include "common/ids.h"
#include "common/signals/membership.h"

namespace syncgrads::sim {

struct Gone {
  bool graceful = false;
  std::vector<GroupRound> last_rounds;

  // Returns true if a server that has applied this change may still count a contribution of the
  // member to this round.
  bool MayContribute(GroupId group, Round round) const;
};

struct JobHistory {
  std::vector<Epoch> epochs;
  std::map<GroupId, std::shared_ptr<const GroupPlan>> groups;
  std::map<MemberId, Gone> gone;
  std::map<MemberId, std::map<GroupId, Round>> ended;
  // For each server: the members that have gone according to the changes that it has applied, and
  // the sequence number of the change.
  struct ToldGone {
    Gone gone;
    uint64_t sequence = 0;
  };
  std::map<ServerIndex, std::map<MemberId, ToldGone>> told_gone;
  // Groups with a quorum only: the contributor set of each round.
  std::map<GroupId, std::map<Round, std::vector<MemberId>>> sets;
  // Groups whose servers clip gradients only: the factor that the gradients of a round are
  // multiplied by.
  std::map<std::pair<GroupId, Round>, double> gradient_factors;

  // The learning rate factor that was stored last.
  double rate_factor = 1;

  // Returns null if the group has not been registered.
  const GroupPlan* Find(GroupId group) const;
  // Returns the epoch that a round belongs to; null if there is none.
  const Epoch* EpochOf(GroupId group, Round round) const;
  // Returns true if the member is not in the newest epoch, or has not been brought up to date in
  // it.
  bool IsNewcomer(MemberId member) const;
  // Returns true if the member had neither ended its data before this round nor gone.
  bool HasData(GroupId group, Round round, MemberId member) const;
  // Returns the contributor set of a round; null if none is stored.
  const std::vector<MemberId>* SetOf(GroupId group, Round round) const;
};

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_JOB_HISTORY_H_
