// When a round closes, and with whose contributions, as plain data. What a server
// does about it is in server/core/round_policy.h; docs/consistency.md says what a
// user gets.

#ifndef SYNCGRADS_COMMON_POLICY_H_
#define SYNCGRADS_COMMON_POLICY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace syncgrads {

// When every member has contributed, skipped, ended, or gone.
struct Sync {
  friend bool operator==(const Sync&, const Sync&) = default;
};

// With the first contribution that is not a skip.
struct First {
  friend bool operator==(const First&, const First&) = default;
};

// With a set of members that the coordinator fixes for all chunks: the first
// `least` whose contributions are complete on every server, and who else is there
// within `grace` of those. Where fewer members have data, all of them.
struct Quorum {
  uint32_t least = 1;
  absl::Duration grace;
  // Results that are kept for members that are late, where they apply each of them.
  // Parameters on the servers need no more than the newest.
  uint32_t kept = 8;
  friend bool operator==(const Quorum&, const Quorum&) = default;
};

// Each contribution is applied as it comes. A member is answered when every member
// that has data is at most `bound` contributions behind it; at once without a bound.
// With an optimizer on the servers.
struct Staleness {
  std::optional<uint32_t> bound;
  // The learning rate is divided by how many contributions of others have been applied
  // since the member was last answered (Zhang et al. 2016), where that is more than 1.
  bool scales_rate = false;
  friend bool operator==(const Staleness&, const Staleness&) = default;
};

using Policy = std::variant<Sync, First, Quorum, Staleness>;

// "sync", "first", "quorum(least=3, grace=50ms, kept=8)", "staleness(bound=2,
// scales_rate=0)".
std::string ToString(const Policy& policy);

// Errors:
//   InvalidArgument  names the field, its value and the range
absl::Status Validate(const Policy& policy);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_POLICY_H_
