// What is stored of one generation of a job: by its coordinator, and by each server
// about who has gone.

#ifndef SYNCGRADS_TESTS_SIM_JOB_HISTORY_H_
#define SYNCGRADS_TESTS_SIM_JOB_HISTORY_H_

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/group.h"
#include "common/ids.h"
#include "common/membership.h"

namespace syncgrads::sim {

struct Gone {
  bool in_order = false;
  std::vector<GroupRound> last_rounds;

  // Whether a server that has heard of it may count what the member contributed.
  bool MayContribute(GroupId group, Round round) const;
};

struct JobHistory {
  std::vector<Epoch> epochs;
  std::map<GroupId, std::shared_ptr<const GroupPlan>> groups;
  std::map<MemberId, Gone> gone;
  std::map<MemberId, std::map<GroupId, Round>> ended;
  // By server: who has gone, as far as it knows.
  std::map<ServerIndex, std::map<MemberId, Gone>> known_gone;
  // Of groups with a quorum: whose contributions to a round count.
  std::map<GroupId, std::map<Round, std::vector<MemberId>>> sets;
  // What gradients are multiplied by, of groups whose servers clip them.
  std::map<std::pair<GroupId, Round>, double> gradient_factors;

  // Null if nobody has registered it.
  const GroupPlan* Find(GroupId group) const;
  // The epoch that a round belongs to; null if there is none.
  const Epoch* EpochOf(GroupId group, Round round) const;
  // In no epoch, or not brought up to date.
  bool IsNewcomer(MemberId member) const;
  // Whether a member has not ended before the round, nor gone.
  bool HasData(GroupId group, Round round, MemberId member) const;
  // The set of a round; null if none is stored.
  const std::vector<MemberId>* SetOf(GroupId group, Round round) const;
};

}  // namespace syncgrads::sim

#endif  // SYNCGRADS_TESTS_SIM_JOB_HISTORY_H_
