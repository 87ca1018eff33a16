// Checks that numbers are finite, that is, neither a NaN nor an infinity.

#ifndef SYNCGRADS_COMMON_KERNELS_FINITE_H_
#define SYNCGRADS_COMMON_KERNELS_FINITE_H_

#include <cstddef>

#include "common/dtype.h"

namespace syncgrads {

// Returns whether all of `count` elements, which have any alignment, are finite. Integers always
// are. Thread-safe.
bool AllFinite(DType dtype, const std::byte* data, size_t count);

// Returns the position of the first element that is not finite; `count` if all are finite.
// Thread-safe.
size_t FirstNonFinite(DType dtype, const std::byte* data, size_t count);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_KERNELS_FINITE_H_
