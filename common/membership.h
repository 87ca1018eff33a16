// Who takes part in a job, as plain data.

#ifndef SYNCGRADS_COMMON_MEMBERSHIP_H_
#define SYNCGRADS_COMMON_MEMBERSHIP_H_

#include <cstdint>
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

// The membership from each group's first round on.
struct Epoch {
  uint64_t number = 0;  // counts from 1
  std::vector<Member> members;  // members[r] has rank r
  // Groups that are not listed begin in the epoch that is then the newest.
  std::vector<GroupRound> first_rounds;

  friend bool operator==(const Epoch&, const Epoch&) = default;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_MEMBERSHIP_H_
