#include "common/codec/block_arithmetic.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/codec/block_arithmetic.cc"
// clang-format off
#include "hwy/foreach_target.h"  // Includes this file once per instruction set.
// clang-format on
// foreach_target.h comes first, because the headers below are compiled for each instruction set.
#include "common/kernels/elements-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace syncgrads {
namespace HWY_NAMESPACE {

void ClampBlock(const float* in, size_t count, float limit, float* out) {
  const hn::ScalableTag<float> d;
  const auto most = hn::Set(d, limit);
  const auto least = hn::Set(d, -limit);
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    hn::StoreU(hn::Max(least, hn::Min(hn::LoadU(d, in + i), most)), d, out + i);
  }
  for (; i < count; ++i) out[i] = in[i] > limit ? limit : in[i] < -limit ? -limit : in[i];
}

// Compares the bits of magnitudes: those of infinities and NaNs are larger than those of all finite
// numbers.
bool AddFiniteBlocks(const std::byte* a, const float* b, size_t count, float* out) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> bits;
  const size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(bits, 0x7fffffff);
  auto largest = hn::Zero(bits);
  const auto add = [&](const std::byte* from, const float* with, float* to) HWY_ATTR {
    auto sum = LoadBytes(d, from);
    if (with != nullptr) sum = hn::Add(sum, hn::LoadU(d, with));
    largest = hn::Max(largest, hn::And(hn::BitCast(bits, sum), mask));
    hn::StoreU(sum, d, to);
  };
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    add(a + i * sizeof(float), b == nullptr ? nullptr : b + i, out + i);
  }
  if (i < count) {
    HWY_ALIGN float left[hn::MaxLanes(d)] = {};
    HWY_ALIGN float right[hn::MaxLanes(d)] = {};
    std::memcpy(left, a + i * sizeof(float), (count - i) * sizeof(float));
    if (b != nullptr) std::memcpy(right, b + i, (count - i) * sizeof(float));
    add(reinterpret_cast<const std::byte*>(left), b == nullptr ? nullptr : right, left);
    std::memcpy(out + i, left, (count - i) * sizeof(float));
  }
  return hn::GetLane(hn::MaxOfLanes(bits, largest)) < 0x7f800000;
}

void SubtractBlock(const float* a, const float* b, size_t count, float* out) {
  const hn::ScalableTag<float> d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    hn::StoreU(hn::Sub(hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, out + i);
  }
  for (; i < count; ++i) out[i] = a[i] - b[i];
}

// Adds the squares of `count` elements, a multiple of kSquareSums, to kSquareSums sums. Each pass
// over the data, which is in the L1 cache, keeps two vectors of sums in registers.
void AddSquares(const std::byte* in, size_t count, double* HWY_RESTRICT sums) {
  if (count == 0) return;  // `in` may be null
  const hn::CappedTag<double, kSquareSums / 2> d;
  const hn::Rebind<float, decltype(d)> narrow;
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < kSquareSums; i += 2 * lanes) {
    auto first = hn::Load(d, sums + i);
    auto second = hn::Load(d, sums + i + lanes);
    const std::byte* from = in + i * sizeof(float);
    for (size_t group = 0; group < count; group += kSquareSums) {
      const auto v = hn::PromoteTo(d, LoadBytes(narrow, from));
      const auto w = hn::PromoteTo(d, LoadBytes(narrow, from + lanes * sizeof(float)));
      first = hn::Add(first, hn::Mul(v, v));
      second = hn::Add(second, hn::Mul(w, w));
      from += kSquareSums * sizeof(float);
    }
    hn::Store(first, d, sums + i);
    hn::Store(second, d, sums + i + lanes);
  }
}

bool HasAllOf(const std::byte* in, size_t count, uint16_t mask) {
  const hn::ScalableTag<uint16_t> d;
  const auto wanted = hn::Set(d, mask);
  auto found = hn::Eq(hn::Zero(d), wanted);  // all false, because the mask is not 0
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    found = hn::Or(found, hn::Eq(hn::And(LoadBytes(d, in + 2 * i), wanted), wanted));
  }
  if (!hn::AllFalse(d, found)) return true;
  for (; i < count; ++i) {
    uint16_t element;
    std::memcpy(&element, in + 2 * i, sizeof(element));
    if ((element & mask) == mask) return true;
  }
  return false;
}

}  // namespace HWY_NAMESPACE
}  // namespace syncgrads
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace syncgrads {

HWY_EXPORT(ClampBlock);
HWY_EXPORT(AddFiniteBlocks);
HWY_EXPORT(SubtractBlock);
HWY_EXPORT(AddSquares);
HWY_EXPORT(HasAllOf);

void Clamp(const float* in, size_t count, float limit, float* out) {
  HWY_DYNAMIC_DISPATCH(ClampBlock)(in, count, limit, out);
}

bool AddFinite(const std::byte* a, const float* b, size_t count, float* out) {
  return HWY_DYNAMIC_DISPATCH(AddFiniteBlocks)(a, b, count, out);
}

void Subtract(const float* a, const float* b, size_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(SubtractBlock)(a, b, count, out);
}

double SumOfSquares(const std::byte* in, size_t count) {
  alignas(64) double sums[kSquareSums] = {};
  const size_t whole = count / kSquareSums * kSquareSums;
  HWY_DYNAMIC_DISPATCH(AddSquares)(in, whole, sums);
  if (whole < count) {
    float padded[kSquareSums] = {};
    std::memcpy(padded, in + whole * sizeof(float), (count - whole) * sizeof(float));
    HWY_DYNAMIC_DISPATCH(AddSquares)(reinterpret_cast<const std::byte*>(padded), kSquareSums, sums);
  }
  for (size_t half = kSquareSums / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[half + i];
  }
  return sums[0];
}

bool AnyHasAllOf(const std::byte* in, size_t count, uint16_t mask) {
  return HWY_DYNAMIC_DISPATCH(HasAllOf)(in, count, mask);
}

}  // namespace syncgrads

#endif  // HWY_ONCE
