// Who takes part in a job, as plain data.

#ifndef SYNCGRADS_COMMON_MEMBERSHIP_H_
#define SYNCGRADS_COMMON_MEMBERSHIP_H_

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

  friend bool operator==(const Member&, const Member&) = default;
};

struct GroupRound {
  GroupId group{};
  Round round{};

  friend bool operator==(const GroupRound&, const GroupRound&) = default;
};

// How newcomers are brought up to date: the donor gives its state, as it is before
// the newcomers' first rounds.
struct Handover {
  MemberId donor{};
  std::vector<MemberId> to;
  std::vector<GroupRound> rounds;

  friend bool operator==(const Handover&, const Handover&) = default;
};

// The membership from each group's first round on.
struct Epoch {
  uint64_t number = 0;          // counts from 1
  std::vector<Member> members;  // members[r] has rank r
  // Groups that are not listed begin in the epoch that is then the newest.
  std::vector<GroupRound> first_rounds;
  // While there are newcomers who are not up to date.
  std::optional<Handover> handover;

  // Nothing if it is none.
  std::optional<uint32_t> RankOf(MemberId id) const;
  bool Has(MemberId id) const { return RankOf(id).has_value(); }
  friend bool operator==(const Epoch&, const Epoch&) = default;
};

// The round listed for a group, if it is.
std::optional<Round> FindRound(const std::vector<GroupRound>& rounds, GroupId group);

// The one of `epochs`, in their order, that a round belongs to; null if there is
// none. A group that an epoch does not list came into being in it, or in the
// first.
const Epoch* FindEpoch(const std::vector<Epoch>& epochs, GroupId group, Round round);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_MEMBERSHIP_H_
