// The policies, as plain data: when a round closes, and which contributions count. The servers'
// implementation is server/core/rounds/round_policy.h; docs/consistency.md describes the effect for
// users.

#ifndef SYNCGRADS_COMMON_GROUP_POLICY_H_
#define SYNCGRADS_COMMON_GROUP_POLICY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace syncgrads {

// A round closes when every member of its epoch has contributed, skipped, ended its data, or left.
struct Sync {
  friend bool operator==(const Sync&, const Sync&) = default;
};

// A round closes with the first contribution that is not a skip.
struct First {
  friend bool operator==(const First&, const First&) = default;
};

// A round closes with a set of members that the coordinator fixes for all chunks: the first `least`
// members whose contributions are complete on every server, and all further members that complete
// theirs within `grace` after that. If fewer than `least` members have data, the set is all of
// them.
struct Quorum {
  uint32_t least = 1;
  absl::Duration grace;
  // Reductions only: the number of results that are kept for late members, which apply each of
  // them. With an optimizer on the servers, only the newest parameters are kept.
  uint32_t kept = 8;
  friend bool operator==(const Quorum&, const Quorum&) = default;
};

// Optimizers on the servers only: each contribution is applied when it arrives. The update is sent
// to the member when every member that has data is at most `bound` contributions behind it; without
// a bound, at once.
struct Staleness {
  std::optional<uint32_t> bound;
  // If true, the learning rate is divided by the number of other members' contributions that have
  // been applied since the last update was sent to this member, if that number is more than 1
  // (Zhang et al. 2016).
  bool scales_rate = false;
  friend bool operator==(const Staleness&, const Staleness&) = default;
};

using Policy = std::variant<Sync, First, Quorum, Staleness>;

// Returns for example "sync", "first", "quorum(least=3, grace=50ms, kept=8)", or
// "staleness(bound=2, scales_rate=0)".
std::string ToString(const Policy& policy);

// Checks the ranges of a policy's fields.
//
// Errors:
//   InvalidArgument  a field is out of range; the message has the field, its value and the range
absl::Status Validate(const Policy& policy);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_GROUP_POLICY_H_
