// Reference implementations of the kernels for tests: plain loops over single elements. Where the
// kernels' headers promise exact bits, these give the same bits.

#ifndef SYNCGRADS_COMMON_KERNELS_REFERENCE_H_
#define SYNCGRADS_COMMON_KERNELS_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "absl/base/casts.h"
#include "absl/types/span.h"
#include "common/dtype.h"
#include "common/kernels/reduce.h"
#include "common/update_rule.h"

namespace syncgrads::reference {

inline float FloatOfF16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half >> 15) << 31;
  const int exponent = (half >> 10) & 0x1f;
  const uint32_t digits = half & 0x3ff;
  if (exponent == 0x1f) {
    const uint32_t quiet = digits == 0 ? 0 : 0x400000;
    return absl::bit_cast<float>(sign | 0x7f800000 | digits << 13 | quiet);
  }
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(digits), -24)
                              : std::ldexp(static_cast<float>(0x400 | digits), exponent - 25);
  return sign != 0 ? -magnitude : magnitude;
}

inline uint16_t F16OfFloat(float value) {
  const uint32_t bits = absl::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 31 << 15);
  if (std::isnan(value)) return sign | 0x7e00 | ((bits >> 13) & 0x3ff);
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  if (magnitude == 0) return sign;
  // The magnitude in units of the last place of an f16 of this size. nearbyint rounds ties to even.
  // It may carry into the exponent, which the encoding allows.
  const int exponent = std::max(std::ilogb(magnitude), -14);
  const auto units = static_cast<uint16_t>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return sign | static_cast<uint16_t>(((exponent + 14) << 10) + units);
}

inline float FloatOfBF16(uint16_t upper) {
  return absl::bit_cast<float>(static_cast<uint32_t>(upper) << 16);
}

inline uint16_t BF16OfFloat(float value) {
  const uint32_t bits = absl::bit_cast<uint32_t>(value);
  const uint16_t upper = static_cast<uint16_t>(bits >> 16);
  const uint32_t lower = bits & 0xffff;
  if (std::isnan(value)) return upper | 0x40;
  const bool up = lower > 0x8000 || (lower == 0x8000 && (upper & 1) != 0);
  return upper + (up ? 1 : 0);
}

// Load and Store read and write element `i`. Load returns it in the type of the arithmetic.
template <DType dtype>
auto Load(const std::byte* from, size_t i) {
  const auto read = [&](auto value) {
    std::memcpy(&value, from + i * sizeof(value), sizeof(value));
    return value;
  };
  if constexpr (dtype == DType::kF64) return read(double{});
  if constexpr (dtype == DType::kF32) return read(float{});
  if constexpr (dtype == DType::kF16) return FloatOfF16(read(uint16_t{}));
  if constexpr (dtype == DType::kBF16) return FloatOfBF16(read(uint16_t{}));
  if constexpr (dtype == DType::kI64) return read(int64_t{});
  if constexpr (dtype == DType::kI32) return read(int32_t{});
}

template <DType dtype, typename T>
void Store(T value, std::byte* to, size_t i) {
  const auto write = [&](auto v) { std::memcpy(to + i * sizeof(v), &v, sizeof(v)); };
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(value)) value = std::numeric_limits<T>::quiet_NaN();
  }
  if constexpr (dtype == DType::kF16) {
    write(F16OfFloat(value));
  } else if constexpr (dtype == DType::kBF16) {
    write(BF16OfFloat(value));
  } else {
    write(value);
  }
}

template <typename T>
T Combine(Reduction op, T a, T b) {
  // Only unsigned arithmetic is defined to wrap.
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    if (op == Reduction::kSum) return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    if (op == Reduction::kProduct) return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
    return (op == Reduction::kMin) == (b < a) ? b : a;
  } else {
    if (op == Reduction::kSum || op == Reduction::kAverage) return a + b;
    if (op == Reduction::kProduct) return a * b;
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    if (a == b) return (op == Reduction::kMin) == std::signbit(a) ? a : b;
    return (op == Reduction::kMin) == (b < a) ? b : a;
  }
}

template <DType dtype>
void ReduceAs(Reduction op, absl::Span<const WeightedSource> sources, size_t count,
              std::byte* out) {
  using T = decltype(Load<dtype>(nullptr, 0));
  double total_weight = 0;
  for (const WeightedSource& source : sources) total_weight += source.weight;
  for (size_t i = 0; i < count; ++i) {
    const auto term = [&](const WeightedSource& source) {
      const T value = Load<dtype>(source.data, i);
      return op == Reduction::kAverage ? static_cast<T>(source.weight) * value : value;
    };
    T result = term(sources[0]);
    for (const WeightedSource& source : sources.subspan(1)) {
      result = Combine(op, result, term(source));
    }
    if (op == Reduction::kAverage) result /= static_cast<T>(total_weight);
    Store<dtype>(result, out, i);
  }
}

inline void Reduce(DType dtype, Reduction op, absl::Span<const WeightedSource> sources,
                   size_t count, std::byte* out) {
  if (sources.size() == 1) {
    for (size_t i = 0; i < count * SizeOf(dtype); ++i) out[i] = sources[0].data[i];
    return;
  }
  switch (dtype) {
    case DType::kF64:
      return ReduceAs<DType::kF64>(op, sources, count, out);
    case DType::kF32:
      return ReduceAs<DType::kF32>(op, sources, count, out);
    case DType::kF16:
      return ReduceAs<DType::kF16>(op, sources, count, out);
    case DType::kBF16:
      return ReduceAs<DType::kBF16>(op, sources, count, out);
    case DType::kI64:
      return ReduceAs<DType::kI64>(op, sources, count, out);
    case DType::kI32:
      return ReduceAs<DType::kI32>(op, sources, count, out);
  }
}

}  // namespace syncgrads::reference

#endif  // SYNCGRADS_COMMON_KERNELS_REFERENCE_H_
