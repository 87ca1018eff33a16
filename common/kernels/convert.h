// Conversions between float32 and the 16-bit floats. They give the same bits on every processor,
// whether or not it has instructions for them.

#ifndef SYNCGRADS_COMMON_KERNELS_CONVERT_H_
#define SYNCGRADS_COMMON_KERNELS_CONVERT_H_

#include <cstddef>

#include "common/dtype.h"

namespace syncgrads {

// Widens `count` elements of `dtype`, which is f16, bf16 or f32 (a copy), to float32. Exact for
// every number, including subnormals and infinities. A NaN keeps its sign and payload and becomes
// quiet (f32 keeps its bits).
//
// `in` may have any alignment, and must not overlap `out`. Thread-safe.
void ToFloat(DType dtype, const std::byte* in, size_t count, float* out);

// Narrows `count` floats to `dtype`, which is f16, bf16 or f32 (a copy). Rounds to nearest, ties to
// even. A number that is too large becomes an infinity; one that is too small becomes a subnormal
// or a zero of the same sign. A NaN keeps its sign and the upper bits of its payload and becomes
// quiet (f32 keeps its bits).
//
// `out` may have any alignment, and must not overlap `in`. Thread-safe.
void FromFloat(const float* in, size_t count, DType dtype, std::byte* out);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_KERNELS_CONVERT_H_
