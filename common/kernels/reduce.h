// The reductions that close a round: average, sum, min, max and product.
//
// The same inputs give the same bits on every processor, whatever vector instructions it has.
// Additions are made in the order of the sources, no multiplication is fused with an addition, no
// division is replaced by a multiplication, and a NaN that results from arithmetic is always the
// same NaN.

#ifndef SYNCGRADS_COMMON_KERNELS_REDUCE_H_
#define SYNCGRADS_COMMON_KERNELS_REDUCE_H_

#include <cstddef>

#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/kernels/running_checksum.h"
#include "common/update_rule.h"

namespace syncgrads {

// A member's contribution to a block of elements: contiguous, with any alignment. The weight is
// used by averages only.
struct WeightedSource {
  const std::byte* data;
  double weight = 1;
};

// Returns whether `weight` may be used in an average: it must be from 2^-64 to 2^64. Outside this
// range, the weight or the sum of many weights would not be a normal float32. Weights from a peer
// must be checked with this before Reduce is called.
bool IsWeight(double weight);

// Writes the reduction of `count` elements of each source to `out`.
//
// There is at least one source. `sources` are processed in the order given. `out` may have any
// alignment. It may be the same memory as any of the sources, and must not overlap one in any other
// way.
//
// A single source is copied bit by bit, whatever the reduction and its weight: -0 and the payload
// of a NaN are kept, and an average is not rounded by multiplying with the weight and dividing by
// it. With two or more sources, the accumulator starts with the first source (not with 0):
//
//   kAverage  (w1*g1 + w2*g2 + ...) / W. In float32 each w is rounded to
//             float32 first. W is added up in float64 in the order of the
//             sources, then rounded to the accumulator's type. Not defined for
//             integers: such a call is a bug in the caller, and aborts.
//   kSum      g1 + g2 + ...
//   kProduct  g1 * g2 * ...
//   kMin      IEEE 754-2019 minimum: NaN if any is NaN; -0 is below +0
//   kMax      IEEE 754-2019 maximum: NaN if any is NaN; +0 is above -0
//
// f16, bf16 and f32 accumulate in float32 and are rounded once, at the end, to nearest even; f64
// accumulates in float64. Integers are exact modulo 2^32 or 2^64, that is, they wrap in two's
// complement. A result that is NaN is the quiet NaN with sign and payload 0.
//
// Thread-safe. Assumes the default floating-point environment: rounding to nearest, subnormals
// kept.
void Reduce(DType dtype, Reduction op, absl::Span<const WeightedSource> sources, size_t count,
            std::byte* out);

// Reduces like Reduce, and returns whether every result is finite before it is rounded to f16 or
// bf16. The check needs no further pass over memory.
//
// For sums and averages: if any source has a NaN or an infinity, the result is not finite either.
// The reverse does not hold, because a sum of finite numbers may be too large. Integers are always
// finite.
//
// If `checksum` is not null, the results are added to it. Averages in float32 and float64 are added
// while they are in registers.
bool ReduceFinite(DType dtype, Reduction op, absl::Span<const WeightedSource> sources, size_t count,
                  std::byte* out, RunningChecksum* checksum = nullptr);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_KERNELS_REDUCE_H_
