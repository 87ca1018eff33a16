// Whether numbers are finite: neither a NaN nor an infinity.

#ifndef SYNCGRADS_COMMON_KERNELS_FINITE_H_
#define SYNCGRADS_COMMON_KERNELS_FINITE_H_

#include <cstddef>

#include "common/dtype.h"

namespace syncgrads {

// Of `count` elements that are aligned in any way. Integers are finite. Thread-safe.
bool AllFinite(DType dtype, const std::byte* data, size_t count);

// The position of the first element that is not finite; `count` if there is none.
// Thread-safe.
size_t FirstNonFinite(DType dtype, const std::byte* data, size_t count);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_KERNELS_FINITE_H_
