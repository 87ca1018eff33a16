// The members of a job and its epochs, as plain data.

#ifndef SYNCGRADS_COMMON_SIGNALS_MEMBERSHIP_H_
#define SYNCGRADS_COMMON_SIGNALS_MEMBERSHIP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/ids.h"

namespace syncgrads {

struct Member {
  MemberId id{};
  std::string name;
  Incarnation incarnation{};
  // The hash of the member's secret (HashSecret); empty if it has none. Workers do not receive it.
  std::string secret_hash = {};

  friend bool operator==(const Member&, const Member&) = default;
};

struct GroupRound {
  GroupId group{};
  Round round{};

  friend bool operator==(const GroupRound&, const GroupRound&) = default;
};

// How newcomers get the job's state: the donor sends its state as it is before the newcomers' first
// rounds, which are in `rounds`.
struct Handover {
  MemberId donor{};
  std::vector<MemberId> to;
  std::vector<GroupRound> rounds;

  friend bool operator==(const Handover&, const Handover&) = default;
};

// The factor by which the learning rate of every round of an epoch is multiplied, beside the
// schedule of the job.
struct LearningRate {
  double factor = 1;
  // The first round with this factor, for each group that it applies to (HasLearningRate). Empty if
  // the factor has never been changed.
  std::vector<GroupRound> since;

  friend bool operator==(const LearningRate&, const LearningRate&) = default;
};

// An epoch: the list of members that is valid from a given first round of each group on.
struct Epoch {
  uint64_t number = 0;          // counts from 1
  std::vector<Member> members;  // members[r] has rank r
  // The first round of this epoch for each group that existed when it began. A group that is
  // registered later begins in the epoch that is the newest at that time.
  std::vector<GroupRound> first_rounds;
  // Set while there are newcomers that do not have the job's state yet.
  std::optional<Handover> handover;
  LearningRate learning_rate;

  // Returns the member's rank; nullopt if it is not a member of this epoch.
  std::optional<uint32_t> RankOf(MemberId id) const;
  bool Has(MemberId id) const { return RankOf(id).has_value(); }
  friend bool operator==(const Epoch&, const Epoch&) = default;
};

// Returns the round that `rounds` lists for `group`; nullopt if it lists none.
std::optional<Round> FindRound(const std::vector<GroupRound>& rounds, GroupId group);

// Returns the epoch that `round` of `group` belongs to; null if there is none. `epochs` are in the
// order of their numbers. The newest epoch whose first round of the group is not after `round` is
// returned. An epoch that does not list the group began before the group was registered, so every
// round of the group that no newer epoch has belongs to it.
const Epoch* FindEpoch(const std::vector<Epoch>& epochs, GroupId group, Round round);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_SIGNALS_MEMBERSHIP_H_
