// The arrays that callers pass to collectives.

#ifndef SYNCGRADS_CLIENT_API_ARRAYS_H_
#define SYNCGRADS_CLIENT_API_ARRAYS_H_

#include <cstddef>

#include "absl/types/span.h"
#include "common/dtype.h"

namespace syncgrads {

// An array that belongs to the caller.
struct ConstArray {
  DType dtype;
  const void* data;
  size_t elements;
};
struct Array {
  DType dtype;
  void* data;
  size_t elements;
  operator ConstArray() const { return {dtype, data, elements}; }
};

template <typename T>
ConstArray ArrayOf(absl::Span<const T> values) {
  return {DTypeOf<T>::value, values.data(), values.size()};
}
template <typename T>
Array MutableArrayOf(absl::Span<T> values) {
  return {DTypeOf<T>::value, values.data(), values.size()};
}

}  // namespace syncgrads

#endif  // SYNCGRADS_CLIENT_API_ARRAYS_H_
