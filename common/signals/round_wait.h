// An open round and what it waits for, in terms that a person can act on.

#ifndef SYNCGRADS_COMMON_SIGNALS_ROUND_WAIT_H_
#define SYNCGRADS_COMMON_SIGNALS_ROUND_WAIT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"

namespace syncgrads {

// A server reports it; see Admin.Explain in proto/admin.proto.
struct RoundWait {
  struct Missing {
    MemberId member{};
    std::string name;
    // The time since the last message from the member.
    absl::Duration silent;

    friend bool operator==(const Missing&, const Missing&) = default;
  };

  GroupId group{};
  std::string group_name;
  Round round{};
  uint32_t open_chunks = 0;
  // The names of at most ten tensors; `tensor_count` is the number of all.
  std::vector<std::string> tensors;
  uint32_t tensor_count = 0;
  std::vector<Missing> missing;
  absl::Duration open_for;
  // What the whole job waits for; empty if the round waits only for the members in `missing`.
  std::string held_for;

  friend bool operator==(const RoundWait&, const RoundWait&) = default;
};

// Returns, for example, 'step 12 of group "model" has waited 10.2s for worker "w2" (last message
// 3s ago) to contribute tensors "dense1/kernel", "dense1/bias"'. If no member is missing and
// `held_for` is not empty: 'step 12 of group "model" has waited 10.2s: ' and `held_for`.
std::string ToString(const RoundWait& wait);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_SIGNALS_ROUND_WAIT_H_
