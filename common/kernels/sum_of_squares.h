// Sums of squares, for norms, and scaling by a factor.

#ifndef SYNCGRADS_COMMON_KERNELS_SUM_OF_SQUARES_H_
#define SYNCGRADS_COMMON_KERNELS_SUM_OF_SQUARES_H_

#include <cstddef>

#include "common/dtype.h"

namespace syncgrads {

// Returns the sum of the squares of `count` elements, f32 or f64, with any alignment. It is
// computed in float64 and in the same order on every processor: eight sums, each of every eighth
// element, are added from the first to the last.
//
// The relative error is below count * 2^-52. Thread-safe.
double SumOfSquares(DType dtype, const std::byte* data, size_t count);

// Multiplies each of `count` elements, f32 or f64, with any alignment, by `factor`, which is first
// rounded to their type. Thread-safe.
void Scale(DType dtype, double factor, std::byte* data, size_t count);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_KERNELS_SUM_OF_SQUARES_H_
