// NaNs and infinities in contributions: found, named, and left out.
//
// Nobody looks for them as contributions arrive. A sum that has one in it is not
// finite, and closing a round notices that on the way (Closed::finite); only then
// are the contributions gone through one by one.

#ifndef SYNCGRADS_SERVER_CORE_NON_FINITE_H_
#define SYNCGRADS_SERVER_CORE_NON_FINITE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/group.h"
#include "server/core/closing.h"
#include "server/core/contribution.h"

namespace syncgrads::server {

// The first element of a span that is not finite.
struct NonFinite {
  uint32_t span = 0;
  uint64_t index = 0;  // in its tensor, row-major
  double value = 0;
};

// One for each span of the contribution that has such an element, ascending.
std::vector<NonFinite> FindNonFinite(const Chunk& chunk, const Contribution& contribution);

// What is left of a contribution, which is not encoded, without these of its spans, ascending; a
// skip if nothing is.
Contribution WithoutSpans(const Chunk& chunk, const Contribution& contribution,
                          absl::Span<const uint32_t> spans);

// 'gradient "dense1/kernel" of worker "w2" is nan at index 3 in step 7 of group
// "model"'.
std::string ToString(const GroupPlan& plan, const Chunk& chunk, Round round,
                     const std::string& worker, const NonFinite& found);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_NON_FINITE_H_
