// The dtypes: the types of a tensor's elements.

#ifndef SYNCGRADS_COMMON_DTYPE_H_
#define SYNCGRADS_COMMON_DTYPE_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace syncgrads {

// The enum values equal those of syncgrads.v1.DType.
enum class DType : uint8_t {
  kF64 = 1,
  kF32 = 2,
  kF16 = 3,   // IEEE 754 binary16
  kBF16 = 4,  // the upper half of a binary32
  kI64 = 5,
  kI32 = 6,
};

inline constexpr DType kAllDTypes[] = {DType::kF64,  DType::kF32, DType::kF16,
                                       DType::kBF16, DType::kI64, DType::kI32};

// Returns the number of bytes of one element; 0 if the dtype is unknown.
constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
  }
  return 0;
}

// Returns "f64", "f32", "f16", "bf16", "i64" or "i32"; "unknown" for any other value.
constexpr absl::string_view NameOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "f64";
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kI64:
      return "i64";
    case DType::kI32:
      return "i32";
  }
  return "unknown";
}

constexpr bool IsInteger(DType dtype) { return dtype == DType::kI64 || dtype == DType::kI32; }

// DTypeOf<T>::value is the dtype of the C++ type T: float, double, int32_t or int64_t.
template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::kI64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::kI32;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_DTYPE_H_
