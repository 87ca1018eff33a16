#include "common/kernels/convert.h"

#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/kernels/convert.cc"
// clang-format off
#include "hwy/foreach_target.h"  // Includes this file once per instruction set.
// clang-format on
// foreach_target.h comes first, because the headers below are compiled for each instruction set.
#include "common/kernels/elements-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace syncgrads {
namespace HWY_NAMESPACE {

template <class From, class To>
void ConvertElements(const std::byte* in, size_t count, std::byte* out) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> bits;
  const auto convert = [&](const std::byte* from, std::byte* to) HWY_ATTR {
    auto v = From::Load(d, from);
    // Makes a signalling NaN quiet. Only bf16 needs this: it is widened by a shift, which keeps a
    // NaN signalling.
    v = hn::IfThenElse(hn::IsNaN(v),
                       hn::BitCast(d, hn::Or(hn::BitCast(bits, v), hn::Set(bits, 0x00400000))), v);
    To::Store(d, v, to);
  };

  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    convert(in + i * From::kBytes, out + i * To::kBytes);
  }
  if (i < count) {
    HWY_ALIGN std::byte from[hn::MaxLanes(d) * From::kBytes] = {};
    HWY_ALIGN std::byte to[hn::MaxLanes(d) * To::kBytes];
    std::memcpy(from, in + i * From::kBytes, (count - i) * From::kBytes);
    convert(from, to);
    std::memcpy(out + i * To::kBytes, to, (count - i) * To::kBytes);
  }
}

void Widen(DType from, const std::byte* in, size_t count, std::byte* out) {
  if (from == DType::kF16) {
    ConvertElements<Float16, Native<float>>(in, count, out);
  } else {
    ConvertElements<BFloat16, Native<float>>(in, count, out);
  }
}

void Narrow(const std::byte* in, size_t count, DType to, std::byte* out) {
  if (to == DType::kF16) {
    ConvertElements<Native<float>, Float16>(in, count, out);
  } else {
    ConvertElements<Native<float>, BFloat16>(in, count, out);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace syncgrads
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "common/kernels/require.h"

namespace syncgrads {

HWY_EXPORT(Widen);
HWY_EXPORT(Narrow);

void ToFloat(DType dtype, const std::byte* in, size_t count, float* out) {
  if (count == 0) return;
  if (dtype == DType::kF32) {
    std::memcpy(out, in, count * sizeof(float));
    return;
  }
  Require(dtype == DType::kF16 || dtype == DType::kBF16,
          "ToFloat of a dtype that is f16, bf16 or f32");
  HWY_DYNAMIC_DISPATCH(Widen)(dtype, in, count, reinterpret_cast<std::byte*>(out));
}

void FromFloat(const float* in, size_t count, DType dtype, std::byte* out) {
  if (count == 0) return;
  if (dtype == DType::kF32) {
    std::memcpy(out, in, count * sizeof(float));
    return;
  }
  Require(dtype == DType::kF16 || dtype == DType::kBF16,
          "FromFloat to a dtype that is f16, bf16 or f32");
  HWY_DYNAMIC_DISPATCH(Narrow)(reinterpret_cast<const std::byte*>(in), count, dtype, out);
}

}  // namespace syncgrads

#endif  // HWY_ONCE
