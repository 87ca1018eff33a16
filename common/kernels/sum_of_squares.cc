#include "common/kernels/sum_of_squares.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/kernels/sum_of_squares.cc"
// clang-format off
#include "hwy/foreach_target.h"  // Includes this file once per instruction set.
// clang-format on
// foreach_target.h comes first, because the headers below are compiled for each instruction set.
#include "common/kernels/elements-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace syncgrads {
namespace HWY_NAMESPACE {

// Number of partial sums: the lanes of the widest vectors. Narrower vectors are used several at a
// time.
constexpr size_t kSums = 8;

template <class D>
HWY_INLINE hn::Vec<D> LoadAsDouble(D d, const float*, const std::byte* from) {
  const hn::Rebind<float, D> narrow;
  return hn::PromoteTo(d, LoadBytes(narrow, from));
}
template <class D>
HWY_INLINE hn::Vec<D> LoadAsDouble(D d, const double*, const std::byte* from) {
  return LoadBytes(d, from);
}

template <typename T>
double Sum(const std::byte* data, size_t count) {
  const hn::CappedTag<double, kSums> d;
  const size_t lanes = hn::Lanes(d);
  const size_t vectors = kSums / lanes;
  hn::Vec<decltype(d)> sums[kSums];
  for (size_t v = 0; v < vectors; ++v) sums[v] = hn::Zero(d);
  size_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (size_t v = 0; v < vectors; ++v) {
      const auto x =
          LoadAsDouble(d, static_cast<const T*>(nullptr), data + (i + v * lanes) * sizeof(T));
      sums[v] = hn::Add(sums[v], hn::Mul(x, x));
    }
  }
  HWY_ALIGN double parts[kSums];
  for (size_t v = 0; v < vectors; ++v) hn::Store(sums[v], d, parts + v * lanes);
  for (size_t part = 0; i < count; ++i, ++part) {
    T x;
    std::memcpy(&x, data + i * sizeof(T), sizeof(x));
    parts[part] += static_cast<double>(x) * static_cast<double>(x);
  }
  double sum = 0;
  for (const double part : parts) sum += part;
  return sum;
}

double SumElements(DType dtype, const std::byte* data, size_t count) {
  return dtype == DType::kF64 ? Sum<double>(data, count) : Sum<float>(data, count);
}

template <typename T>
void ScaleAs(T factor, std::byte* data, size_t count) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  const auto factors = hn::Set(d, factor);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    std::byte* const at = data + i * sizeof(T);
    StoreBytes(d, hn::Mul(LoadBytes(d, at), factors), at);
  }
  for (; i < count; ++i) {
    T x;
    std::memcpy(&x, data + i * sizeof(T), sizeof(x));
    x *= factor;
    std::memcpy(data + i * sizeof(T), &x, sizeof(x));
  }
}

void ScaleElements(DType dtype, double factor, std::byte* data, size_t count) {
  if (dtype == DType::kF64) {
    ScaleAs<double>(factor, data, count);
  } else {
    ScaleAs<float>(static_cast<float>(factor), data, count);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace syncgrads
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "common/kernels/require.h"

namespace syncgrads {

HWY_EXPORT(SumElements);
HWY_EXPORT(ScaleElements);

double SumOfSquares(DType dtype, const std::byte* data, size_t count) {
  Require(dtype == DType::kF32 || dtype == DType::kF64, "a norm of f32 or f64");
  return HWY_DYNAMIC_DISPATCH(SumElements)(dtype, data, count);
}

void Scale(DType dtype, double factor, std::byte* data, size_t count) {
  Require(dtype == DType::kF32 || dtype == DType::kF64, "a multiple of f32 or f64");
  HWY_DYNAMIC_DISPATCH(ScaleElements)(dtype, factor, data, count);
}

}  // namespace syncgrads

#endif  // HWY_ONCE
