// Finds, names, and removes NaNs and infinities in contributions.
//
// Contributions are not searched when they arrive. A sum that includes a NaN or an infinity is not
// finite, which is detected while a round is closed (Closed::finite). Only then are the
// contributions searched one by one.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_NON_FINITE_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_NON_FINITE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/group/group.h"
#include "server/core/closing/closing.h"
#include "server/core/closing/contribution.h"

namespace syncgrads::server {

// The first element of a span that is not finite.
struct NonFinite {
  uint32_t span = 0;
  uint64_t index = 0;  // in its tensor, row-major
  double value = 0;
};

// Returns one entry for each span of the contribution that has such an element, ascending. An
// encoded contribution has none.
std::vector<NonFinite> FindNonFinite(const Chunk& chunk, const Contribution& contribution);

// Returns the contribution without `spans`, which are ascending; a skip if no span is left. The
// contribution is not encoded. Its payload is shared, not copied.
Contribution WithoutSpans(const Chunk& chunk, const Contribution& contribution,
                          absl::Span<const uint32_t> spans);

// Returns, for example, 'gradient "dense1/kernel" of worker "w2" is nan at index 3 in step 7 of
// group "model"'.
std::string ToString(const GroupPlan& plan, const Chunk& chunk, Round round,
                     const std::string& worker, const NonFinite& found);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_NON_FINITE_H_
