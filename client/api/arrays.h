// The arrays that callers pass to collectives, and functions of them.

#ifndef SYNCGRADS_CLIENT_API_ARRAYS_H_
#define SYNCGRADS_CLIENT_API_ARRAYS_H_

#include <cstddef>
#include <functional>

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

// Combines the array `next` with `accumulated`, which it changes. Both have the elements of the
// collective. Must be associative, and return the same bits on every worker.
using Fold = std::function<void(void* accumulated, const void* next)>;

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
