// The arithmetic that closes a round of a chunk.
//
// One pass reads every contribution where it lies in memory, and writes the result. Contributions
// are added in the order in which they are passed, which is rank order, so the result does not
// depend on the order of arrival.
//
// The functions use only their arguments. The caller holds the lock of the chunk.

#ifndef SYNCGRADS_SERVER_CORE_CLOSING_CLOSING_H_
#define SYNCGRADS_SERVER_CORE_CLOSING_CLOSING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/group/group.h"
#include "common/optim/rate_schedule.h"
#include "server/core/closing/contribution.h"
#include "server/state/slots.h"

namespace syncgrads::server {

struct Seated {
  uint32_t rank;
  const Contribution* contribution;
};

struct Closed {
  // The number of contributors to each span.
  std::vector<uint32_t> counts;
  // The ranks that contributed, ascending. The functions of this file set it for a gather only; for
  // other rules the caller does.
  std::vector<uint32_t> contributors;
  // The length of the result in the slot's values, in bytes. 0 if nobody contributed and there are
  // no earlier parameters.
  size_t value_bytes = 0;
  // The codec of the result.
  Codec codec = Codec::kRaw;
  // False if an averaged or summed value is NaN or infinite: a contribution has such a value, or
  // several finite contributions are too large together. Reliable only with `check_finite`; without
  // it, `finite` may be true for such values.
  bool finite = true;
};

// Returns the number of updates after one more. The first contribution to a group may set any
// number (see CloseInitial), so the number does not grow past the largest one.
inline uint64_t OneMoreThan(uint64_t updates) {
  return updates == ~uint64_t{0} ? updates : updates + 1;
}

// Returns true if any span has a contributor.
bool AnybodyContributed(const std::vector<uint32_t>& counts);

// The largest size in bytes that a result with this number of contributors can have.
size_t ResultBytes(const Chunk& chunk, const UpdateRule& rule, size_t contributions);

// Closes a round of a reduction or a gather: computes the result of `contributions`, which are in
// rank order, and writes it to `out`. Elements of a span without contributors become 0. `rule` is
// not an optimizer.
Closed CloseReduction(const Chunk& chunk, const UpdateRule& rule,
                      absl::Span<const Seated> contributions, Slot& out, bool check_finite = false);

// Closes round 0 of an optimizer: copies the initial parameters from the contribution of the lowest
// rank that has all spans. The optimizer's slots and update counts are copied from that
// contribution if it includes them; otherwise they become 0. If there is no such contribution, all
// counts are 0 and the contents of `out` are undefined.
Closed CloseInitial(const Chunk& chunk, absl::Span<const Seated> contributions, Slot& out);

// Averages the gradients, applies the optimizer to the parameters and slots in `previous`, block by
// block, and writes the new ones to `out`. A span without contributors is copied from `previous`.
Closed CloseUpdate(const Chunk& chunk, const ScheduledOptimizer& optimizer,
                   absl::Span<const Seated> contributions, const Slot& previous, Slot& out,
                   bool check_finite = false);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_CLOSING_CLOSING_H_
