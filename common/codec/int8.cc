#include "common/codec/int8.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/codec/int8.cc"
// clang-format off
#include "hwy/foreach_target.h"  // Includes this file once per instruction set.
// clang-format on
// foreach_target.h comes first, because the headers below are compiled for each instruction set.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace syncgrads {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Adding kRounder to a number of at most 2^22 in magnitude rounds it to an integer, ties to even.
// Subtracting kRounderBits from the bits of the sum then gives this integer as an int32.
constexpr float kRounder = 0x1.8p23f;
constexpr int32_t kRounderBits = 0x4b400000;

// Encodes a whole group of finite values. Returns its scale.
float EncodeGroup(const float* HWY_RESTRICT values, int8_t* HWY_RESTRICT out) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> d32;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const size_t lanes = hn::Lanes(d);
  auto largest = hn::Zero(d);
  for (size_t i = 0; i < kInt8Group; i += lanes) {
    largest = hn::Max(largest, hn::Abs(hn::LoadU(d, values + i)));
  }
  const float magnitude = std::min(hn::GetLane(hn::MaxOfLanes(d, largest)), kInt8Most);
  if (magnitude < kInt8Least) {
    std::memset(out, 0, kInt8Group);
    return 0;
  }
  const auto inverse = hn::Set(d, 127 / magnitude);
  const auto rounder = hn::Set(d, kRounder);
  const auto rounder_bits = hn::Set(d32, kRounderBits);
  for (size_t i = 0; i < kInt8Group; i += lanes) {
    const auto scaled = hn::Mul(hn::LoadU(d, values + i), inverse);
    const auto whole = hn::Sub(hn::BitCast(d32, hn::Add(scaled, rounder)), rounder_bits);
    hn::StoreU(hn::DemoteTo(d8, whole), d8, out + i);
  }
  return magnitude / 127;
}

void DecodeGroup(const int8_t* HWY_RESTRICT encoded, float scale, float* HWY_RESTRICT values) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> d32;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const auto factor = hn::Set(d, scale);
  for (size_t i = 0; i < kInt8Group; i += hn::Lanes(d)) {
    const auto whole = hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, encoded + i)));
    hn::StoreU(hn::Mul(whole, factor), d, values + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace syncgrads
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "absl/strings/str_cat.h"

namespace syncgrads {

HWY_EXPORT(EncodeGroup);
HWY_EXPORT(DecodeGroup);

size_t Int8Codec::EncodedBytes(size_t count) const {
  return count + (count + kInt8Group - 1) / kInt8Group * sizeof(float);
}

void Int8Codec::Encode(const float* values, size_t count, std::byte* out) const {
  for (size_t begin = 0; begin < count; begin += kInt8Group) {
    const size_t elements = std::min(count - begin, kInt8Group);
    auto* const bytes = reinterpret_cast<int8_t*>(out + sizeof(float));
    float scale;
    if (elements == kInt8Group) {
      scale = HWY_DYNAMIC_DISPATCH(EncodeGroup)(values + begin, bytes);
    } else {
      alignas(64) float padded[kInt8Group] = {};
      alignas(64) int8_t encoded[kInt8Group];
      std::memcpy(padded, values + begin, elements * sizeof(float));
      scale = HWY_DYNAMIC_DISPATCH(EncodeGroup)(padded, encoded);
      std::memcpy(bytes, encoded, elements);
    }
    std::memcpy(out, &scale, sizeof(scale));
    out += sizeof(scale) + elements;
  }
}

absl::Status Int8Codec::Check(const std::byte* encoded, size_t count) const {
  for (size_t begin = 0; begin < count; begin += kInt8Group) {
    float scale;
    std::memcpy(&scale, encoded, sizeof(scale));
    // The largest magnitude that can be decoded is 128 times the scale.
    if (!(scale >= 0) || !std::isfinite(scale * 128)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a scale of int8 is ", scale, "; must be finite and not negative"));
    }
    encoded += sizeof(scale) + std::min(count - begin, kInt8Group);
  }
  return absl::OkStatus();
}

void Int8Codec::Decode(const std::byte* encoded, size_t count, float* values) const {
  for (size_t begin = 0; begin < count; begin += kInt8Group) {
    const size_t elements = std::min(count - begin, kInt8Group);
    float scale;
    std::memcpy(&scale, encoded, sizeof(scale));
    const auto* const bytes = reinterpret_cast<const int8_t*>(encoded + sizeof(scale));
    if (elements == kInt8Group) {
      HWY_DYNAMIC_DISPATCH(DecodeGroup)(bytes, scale, values + begin);
    } else {
      alignas(64) int8_t padded[kInt8Group] = {};
      alignas(64) float decoded[kInt8Group];
      std::memcpy(padded, bytes, elements);
      HWY_DYNAMIC_DISPATCH(DecodeGroup)(padded, scale, decoded);
      std::memcpy(values + begin, decoded, elements * sizeof(float));
    }
    encoded += sizeof(scale) + elements;
  }
}

}  // namespace syncgrads

#endif  // HWY_ONCE
