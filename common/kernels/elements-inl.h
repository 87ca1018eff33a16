// Loads and stores of vectors of elements, for each dtype. The kernels include this file once per
// instruction set; see hwy/foreach_target.h.

#if defined(SYNCGRADS_COMMON_KERNELS_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SYNCGRADS_COMMON_KERNELS_ELEMENTS_INL_H_
#undef SYNCGRADS_COMMON_KERNELS_ELEMENTS_INL_H_
#else
#define SYNCGRADS_COMMON_KERNELS_ELEMENTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace syncgrads {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Loads a vector from any alignment: tensors lie in received buffers, so vectors are loaded as
// bytes and cast. (HWY_SCALAR, the fallback without vectors, has no cast between sizes.)
template <class D>
HWY_INLINE hn::Vec<D> LoadBytes(D d, const std::byte* from) {
#if HWY_TARGET == HWY_SCALAR
  hn::TFromD<D> lane;
  std::memcpy(&lane, from, sizeof(lane));
  return hn::Load(d, &lane);
#else
  const hn::Repartition<uint8_t, D> bytes;
  return hn::BitCast(d, hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(from)));
#endif
}

template <class D>
HWY_INLINE void StoreBytes(D d, hn::Vec<D> v, std::byte* to) {
#if HWY_TARGET == HWY_SCALAR
  hn::TFromD<D> lane;
  hn::Store(v, d, &lane);
  std::memcpy(to, &lane, sizeof(lane));
#else
  const hn::Repartition<uint8_t, decltype(d)> bytes;
  hn::StoreU(hn::BitCast(bytes, v), bytes, reinterpret_cast<uint8_t*>(to));
#endif
}

// Stores a vector past the caches to an address that is aligned for vectors: memory that is not
// read again soon need not be read before it is written. The caller must call hwy::FlushStream at
// the end.
template <class D>
HWY_INLINE void StreamBytes(D d, hn::Vec<D> v, std::byte* to) {
#if HWY_TARGET == HWY_SCALAR
  StoreBytes(d, v, to);
#else
  const hn::Repartition<uint8_t, decltype(d)> bytes;
  hn::Stream(hn::BitCast(bytes, v), bytes, reinterpret_cast<uint8_t*>(to));
#endif
}

// Replaces every NaN by the quiet NaN with sign and payload 0, because processors and compilers
// differ in which operand's payload an operation passes on. (IsNaN is used because Highway's Ne(v,
// v) is false for a NaN on some targets.)
template <class D>
HWY_INLINE hn::Vec<D> OneNaN(D d, hn::Vec<D> v) {
  using Lane = hn::TFromD<D>;
  return hn::IfThenElse(hn::IsNaN(v), hn::Set(d, std::numeric_limits<Lane>::quiet_NaN()), v);
}

// The classes below describe how elements lie in memory. Each has Lane, the type of the arithmetic;
// kBytes, the size of an element in memory; and Load and Store for one vector of lanes.

template <typename T>
struct Native {
  using Lane = T;
  static constexpr size_t kBytes = sizeof(T);

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* from) {
    return LoadBytes(d, from);
  }
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, std::byte* to) {
    StoreBytes(d, v, to);
  }
  template <class D>
  static HWY_INLINE void Stream(D d, hn::Vec<D> v, std::byte* to) {
    StreamBytes(d, v, to);
  }
};

struct BFloat16 {
  using Lane = float;
  static constexpr size_t kBytes = 2;

  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* from) {
    const hn::RebindToUnsigned<D> d32;
    const hn::Rebind<uint16_t, D> d16;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, LoadBytes(d16, from))));
  }
  template <class D>
  static HWY_INLINE void Store(D, hn::Vec<D> v, std::byte* to) {
    const hn::RebindToUnsigned<D> d32;
    const hn::RebindToSigned<D> i32;
    const hn::Rebind<uint16_t, D> d16;
    const auto bits = hn::BitCast(d32, v);
    const auto upper = hn::ShiftRight<16>(bits);
    // Adds half of the last place that is kept, less 1 if that place is even. The carry then rounds
    // to nearest, ties to even.
    const auto odd = hn::And(upper, hn::Set(d32, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff))));
    const auto nan = hn::Or(upper, hn::Set(d32, 0x40));
    const auto is_nan = hn::RebindMask(d32, hn::IsNaN(v));
    const auto result = hn::IfThenElse(is_nan, nan, rounded);
    StoreBytes(d16, hn::DemoteTo(d16, hn::BitCast(i32, result)), to);
  }
};

struct Float16 {
  using Lane = float;
  static constexpr size_t kBytes = 2;

// Highway's own conversions are used only where they are one instruction. Its emulation elsewhere
// promises nothing for infinities and NaNs.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* from) {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, LoadBytes(d16, from));
  }
  template <class D>
  static HWY_INLINE void Store(D, hn::Vec<D> v, std::byte* to) {
    const hn::Rebind<hwy::float16_t, D> d16;
    StoreBytes(d16, hn::DemoteTo(d16, v), to);
  }
#else
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const std::byte* from) {
    const hn::RebindToUnsigned<D> d32;
    const hn::RebindToSigned<D> i32;
    const hn::Rebind<uint16_t, D> d16;
    const auto half = hn::PromoteTo(d32, LoadBytes(d16, from));
    const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(d32, 0x8000)));
    const auto magnitude = hn::And(half, hn::Set(d32, 0x7fff));
    const auto wide = hn::ShiftLeft<13>(magnitude);

    const auto normal = hn::Add(wide, hn::Set(d32, (127u - 15u) << 23));
    const auto special = hn::Or(wide, hn::Set(d32, 0x7f800000));
    const auto nan = hn::Or(special, hn::Set(d32, 0x00400000));
    // A subnormal or zero is its significand times 2^-24.
    const auto subnormal = hn::BitCast(
        d32, hn::Mul(hn::ConvertTo(d, hn::BitCast(i32, magnitude)), hn::Set(d, 0x1p-24f)));

    auto result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d32, 0x03ff)), normal, subnormal);
    result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d32, 0x7bff)), special, result);
    result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d32, 0x7c00)), nan, result);
    return hn::BitCast(d, hn::Or(result, sign));
  }
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, std::byte* to) {
    const hn::RebindToUnsigned<D> d32;
    const hn::RebindToSigned<D> i32;
    const hn::Rebind<uint16_t, D> d16;
    const auto bits = hn::BitCast(d32, v);
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 0x8000));
    const auto magnitude = hn::And(bits, hn::Set(d32, 0x7fffffff));

    // Rounds to nearest, ties to even, with a carry as in BFloat16::Store. Then changes the
    // exponent's bias from 127 to 15.
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d32, 1));
    const auto rounded = hn::Add(magnitude, hn::Add(odd, hn::Set(d32, 0x0fff)));
    const auto normal = hn::ShiftRight<13>(hn::Sub(rounded, hn::Set(d32, (127u - 15u) << 23)));
    // 0.5 has the same last place as a subnormal f16, so adding 0.5 rounds.
    const auto half = hn::Set(d, 0.5f);
    const auto subnormal =
        hn::Sub(hn::BitCast(d32, hn::Add(hn::BitCast(d, magnitude), half)), hn::BitCast(d32, half));
    const auto nan =
        hn::Or(hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d32, 0x01ff)), hn::Set(d32, 0x7e00));

    // The smallest float32 that becomes a normal f16, and the smallest that rounds to infinity
    // (65520).
    const auto least_normal = hn::Set(d32, 0x38800000);
    const auto least_infinite = hn::Set(d32, 0x477ff000);
    auto result = hn::IfThenElse(hn::Gt(least_normal, magnitude), subnormal, normal);
    result = hn::IfThenElse(hn::Gt(least_infinite, magnitude), result, hn::Set(d32, 0x7c00));
    result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d32, 0x7f800000)), nan, result);
    result = hn::Or(result, sign);
    StoreBytes(d16, hn::DemoteTo(d16, hn::BitCast(i32, result)), to);
  }
#endif
};

}  // namespace HWY_NAMESPACE
}  // namespace syncgrads
HWY_AFTER_NAMESPACE();

#endif  // SYNCGRADS_COMMON_KERNELS_ELEMENTS_INL_H_
