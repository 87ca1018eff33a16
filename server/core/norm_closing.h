// The arithmetic of rounds that close in parts, since they need norms: first the
// average, then sums of squares, then the update; see step_norms.h. In between, the
// averaged gradients lie in the slot of the result, in place of its values.

#ifndef SYNCGRADS_SERVER_CORE_NORM_CLOSING_H_
#define SYNCGRADS_SERVER_CORE_NORM_CLOSING_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/group.h"
#include "common/optim/update.h"
#include "server/core/closing.h"
#include "server/core/step_norms.h"
#include "server/state/slots.h"

namespace syncgrads::server {

// Averages the gradients of `contributions` (in rank order) into `out`. The bits are
// those that CloseUpdate would apply.
Closed AverageGradients(const Chunk& chunk, absl::Span<const Seated> contributions, Slot& out,
                        bool check_finite);

// The sums of a stage over each span of the gradients in `averaged`. `counts` are the
// spans' contributors; `previous` has the parameters and the optimizer's slots.
std::vector<SquareSums> SumSpans(const Chunk& chunk, const Optimizer& optimizer, NormStage stage,
                                 absl::Span<const uint32_t> counts, const Slot& previous,
                                 const Slot& averaged);

// Multiplies the gradients by `factor`, rounded to their type.
void ScaleGradients(const Chunk& chunk, double factor, Slot& averaged);

// Applies the optimizer to what `previous` holds, with the gradients in `out` and, if
// it needs them, the ratios of the group's tensors. A span that nobody contributed to
// stays as it was.
void ApplyAveraged(const Chunk& chunk, const Optimizer& optimizer,
                   absl::Span<const uint32_t> counts, absl::Span<const double> ratios,
                   const Slot& previous, Slot& out);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_NORM_CLOSING_H_
