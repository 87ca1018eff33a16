#include "common/kernels/finite.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/kernels/finite.cc"
// clang-format off
#include "hwy/foreach_target.h"  // Includes this file once per instruction set.
// clang-format on
// foreach_target.h comes first, because the headers below are compiled for each instruction set.
#include "common/kernels/elements-inl.h"
#include "hwy/highway.h"

// A float is not finite if all bits of its exponent are set. All types are therefore read as
// unsigned integers of their size, without a conversion.

HWY_BEFORE_NAMESPACE();
namespace syncgrads {
namespace HWY_NAMESPACE {

template <typename Bits>
bool AllBelow(Bits exponent, const std::byte* data, size_t count) {
  const hn::ScalableTag<Bits> d;
  const size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(d, exponent);
  // Two independent chains hide the latency of the maximum.
  auto most0 = hn::Zero(d), most1 = hn::Zero(d);
  const auto larger = [](auto a, auto b) HWY_ATTR { return hn::IfThenElse(hn::Gt(a, b), a, b); };
  size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    most0 = larger(most0, hn::And(mask, LoadBytes(d, data + i * sizeof(Bits))));
    most1 = larger(most1, hn::And(mask, LoadBytes(d, data + (i + lanes) * sizeof(Bits))));
  }
  bool below = hn::AllFalse(d, hn::Eq(larger(most0, most1), mask));
  for (; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, data + i * sizeof(Bits), sizeof(bits));
    below &= (bits & exponent) != exponent;
  }
  return below;
}

bool AllAreFinite(DType dtype, const std::byte* data, size_t count) {
  switch (dtype) {
    case DType::kF64:
      return AllBelow<uint64_t>(0x7ff0000000000000, data, count);
    case DType::kF32:
      return AllBelow<uint32_t>(0x7f800000, data, count);
    case DType::kF16:
      return AllBelow<uint16_t>(0x7c00, data, count);
    case DType::kBF16:
      return AllBelow<uint16_t>(0x7f80, data, count);
    case DType::kI64:
    case DType::kI32:
      return true;
  }
  return true;
}

}  // namespace HWY_NAMESPACE
}  // namespace syncgrads
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace syncgrads {

HWY_EXPORT(AllAreFinite);

bool AllFinite(DType dtype, const std::byte* data, size_t count) {
  return HWY_DYNAMIC_DISPATCH(AllAreFinite)(dtype, data, count);
}

size_t FirstNonFinite(DType dtype, const std::byte* data, size_t count) {
  constexpr size_t kBlock = 256;
  const size_t bytes = SizeOf(dtype);
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t end = std::min(count, begin + kBlock);
    if (AllFinite(dtype, data + begin * bytes, end - begin)) continue;
    size_t i = begin;
    while (AllFinite(dtype, data + i * bytes, 1)) ++i;
    return i;
  }
  return count;
}

}  // namespace syncgrads

#endif  // HWY_ONCE
