// The arithmetic of rounds that close in stages because they need norms: first the average, then
// sums of squares, then the update (see step_norms.h). Between the stages, the slot of the result
// has the averaged gradients in place of its values.

#ifndef SYNCGRADS_SERVER_CORE_CLOSING_NORM_CLOSING_H_
#define SYNCGRADS_SERVER_CORE_CLOSING_NORM_CLOSING_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/group/group.h"
#include "common/optim/rate_schedule.h"
#include "common/optim/update.h"
#include "server/core/closing/closing.h"
#include "server/core/plan/step_norms.h"
#include "server/state/slots.h"

namespace syncgrads::server {

// Averages the gradients of `contributions` (in rank order) into `out`. The average has the same
// bits as the one that CloseUpdate applies.
Closed AverageGradients(const Chunk& chunk, absl::Span<const Seated> contributions, Slot& out,
                        bool check_finite);

// Returns, for each span, the sums that `stage` needs, computed from the gradients in `averaged`.
// `counts` has the number of contributors to each span; the sums of a span without contributors are
// 0. `previous` has the parameters and the optimizer's slots.
std::vector<SquareSums> SumSpans(const Chunk& chunk, const ScheduledOptimizer& optimizer,
                                 NormStage stage, absl::Span<const uint32_t> counts,
                                 const Slot& previous, const Slot& averaged);

// Multiplies the gradients by `factor` and rounds the products to the chunk's dtype.
void ScaleGradients(const Chunk& chunk, double factor, Slot& averaged);

// Applies the optimizer to the parameters and slots in `previous`, with the gradients in `out`, and
// writes the new ones to `out`. `ratios` has a factor for each tensor of the group; it is empty if
// the optimizer needs none. A span without contributors is copied from `previous`.
void ApplyAveraged(const Chunk& chunk, const ScheduledOptimizer& optimizer,
                   absl::Span<const uint32_t> counts, absl::Span<const double> ratios,
                   const Slot& previous, Slot& out);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_CLOSING_NORM_CLOSING_H_
