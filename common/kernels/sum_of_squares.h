// Norms, and what is done with them.

#ifndef SYNCGRADS_COMMON_KERNELS_SUM_OF_SQUARES_H_
#define SYNCGRADS_COMMON_KERNELS_SUM_OF_SQUARES_H_

#include <cstddef>

#include "common/dtype.h"

namespace syncgrads {

// The sum of the squares of `count` elements, f32 or f64, aligned in any way. It is
// taken in float64 and always in the same order, whatever the processor: eight sums,
// of every eighth element each, which are then added from the first to the last.
//
// The relative error is below count * 2^-52. Thread-safe.
double SumOfSquares(DType dtype, const std::byte* data, size_t count);

// Multiplies each of `count` elements, f32 or f64, by `factor`, which is first
// rounded to their type. Thread-safe.
void Scale(DType dtype, double factor, std::byte* data, size_t count);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_KERNELS_SUM_OF_SQUARES_H_
