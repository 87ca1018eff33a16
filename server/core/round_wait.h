// An open round and whom it waits for, in terms that a person can act on.

#ifndef SYNCGRADS_SERVER_CORE_ROUND_WAIT_H_
#define SYNCGRADS_SERVER_CORE_ROUND_WAIT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"

namespace syncgrads::server {

struct RoundWait {
  struct Missing {
    MemberId member{};
    std::string name;
    absl::Duration silent;
  };

  GroupId group{};
  std::string group_name;
  Round round{};
  uint32_t open_chunks = 0;
  // At most ten of them.
  std::vector<std::string> tensors;
  uint32_t tensor_count = 0;
  std::vector<Missing> missing;
  absl::Duration open_for;
  // What the whole job waits for; empty if it is for these members only.
  std::string held_for;
};

// 'step 12 of group "model" has waited 10.2s for worker "w2" (last heard of 3s
// ago) to contribute tensors "dense1/kernel", "dense1/bias"'; or, where the whole
// job waits, 'step 12 of group "model" has waited 10.2s: ' and what for.
std::string ToString(const RoundWait& wait);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUND_WAIT_H_
