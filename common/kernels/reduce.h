// The reductions that close a round: average, sum, min, max and product.
//
// The same inputs give the same bits on every processor, whatever vector
// instructions it has: the order of the additions is that of the sources, no
// multiplication is fused with an addition, a division is a division, and a
// NaN that comes out of arithmetic is always the same NaN.

#ifndef SYNCGRADS_COMMON_KERNELS_REDUCE_H_
#define SYNCGRADS_COMMON_KERNELS_REDUCE_H_

#include <cstddef>

#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/kernels/running_checksum.h"
#include "common/update_rule.h"

namespace syncgrads {

// What one member contributed to a block of elements: contiguous, aligned in
// any way. The weight counts for averages only.
struct WeightedSource {
  const std::byte* data;
  double weight = 1;
};

// Whether `weight` can stand in an average: between 2^-64 and 2^64. Outside,
// the weight, or the sum of many, would not be a normal float32. Weights that
// come from a peer are to be refused by this before they reach Reduce.
bool IsWeight(double weight);

// Writes the reduction of `count` elements of each source to `out`.
//
// `sources` are taken in the order given; there is at least one. `out` may be
// aligned in any way; it may be the same memory as any of the sources, and must
// not overlap one in any other way.
//
// One source alone is copied, bit by bit, whatever the reduction and its
// weight: -0 and the payload of a NaN are kept, and an average is not rounded
// by multiplying with the weight and dividing by it. Of two sources or more,
// accumulating from the first (not from 0):
//
//   kAverage  (w1*g1 + w2*g2 + ...) / W. In float32 each w is rounded to
//             float32 first. W is added up in float64 in the order of the
//             sources, then rounded to the accumulator's type. Not for
//             integers: a caller that asks for it is broken, and aborts.
//   kSum      g1 + g2 + ...
//   kProduct  g1 * g2 * ...
//   kMin      IEEE 754-2019 minimum: NaN if any is NaN; -0 is below +0
//   kMax      IEEE 754-2019 maximum: NaN if any is NaN; +0 is above -0
//
// f16, bf16 and f32 accumulate in float32 and are rounded once, at the end, to
// nearest even; f64 accumulates in float64. Integers are exact modulo 2^32 or
// 2^64, that is, they wrap in two's complement. A result that is NaN is the
// quiet NaN with sign and payload 0.
//
// Thread-safe. Assumes the default floating-point environment: rounding to
// nearest, subnormals kept.
void Reduce(DType dtype, Reduction op, absl::Span<const WeightedSource> sources, size_t count,
            std::byte* out);

// The same; returns whether every result is finite, before it is rounded to f16 or
// bf16. It costs no further pass over memory.
//
// In a sum, and so in an average, what is not finite stays so: a source that has a
// NaN or an infinity makes the result one. The reverse does not hold, for a sum of
// finite numbers may be too large. Integers are finite.
//
// With a `checksum`, what is written is added to it; averages in float32 and float64 while
// they are in registers.
bool ReduceFinite(DType dtype, Reduction op, absl::Span<const WeightedSource> sources, size_t count,
                  std::byte* out, RunningChecksum* checksum = nullptr);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_KERNELS_REDUCE_H_
