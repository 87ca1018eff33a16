#include "common/codec/top_k.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/codec/top_k.cc"
// clang-format off
#include "hwy/foreach_target.h"  // Includes this file once per instruction set;
// clang-format on
// first of all, so that what follows is seen anew by each.
#include "hwy/highway.h"

// Magnitudes are compared by their bits, which order finite numbers as their values
// do. How large an element must be to be sent is found by bisection: a pass over a
// block in the first-level cache takes less time than one step of a selection that
// moves elements.

HWY_BEFORE_NAMESPACE();
namespace syncgrads {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Writes the bits of the magnitudes, and zeros up to kCodecBlock; returns the
// largest.
uint32_t Magnitudes(const float* HWY_RESTRICT values, size_t count, uint32_t* HWY_RESTRICT out) {
  const hn::ScalableTag<uint32_t> d;
  const size_t lanes = hn::Lanes(d);
  std::memcpy(out, values, count * sizeof(float));
  std::memset(out + count, 0, (kCodecBlock - count) * sizeof(uint32_t));
  const auto mask = hn::Set(d, 0x7fffffff);
  auto largest = hn::Zero(d);
  for (size_t i = 0; i < kCodecBlock; i += lanes) {
    const auto magnitude = hn::And(hn::Load(d, out + i), mask);
    hn::Store(magnitude, d, out + i);
    largest = hn::Max(largest, magnitude);
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// How many of `count` (rounded up to vectors; the rest are zeros) are above `bound`.
size_t CountAbove(const uint32_t* HWY_RESTRICT magnitudes, size_t count, uint32_t bound) {
  const hn::ScalableTag<int32_t> d;  // as signed numbers: few processors compare others
  const size_t lanes = hn::Lanes(d);
  const auto least = hn::Set(d, static_cast<int32_t>(bound));
  auto above = hn::Zero(d);
  for (size_t i = 0; i < count; i += lanes) {
    const auto magnitude = hn::Load(d, reinterpret_cast<const int32_t*>(magnitudes) + i);
    // A lane of a mask is -1 where it holds.
    above = hn::Sub(above, hn::VecFromMask(d, hn::Gt(magnitude, least)));
  }
  return static_cast<size_t>(hn::GetLane(hn::SumOfLanes(d, above)));
}

// Writes the positions of those above `bound`, and of the first `equal` that are
// `bound`, in ascending order.
void Select(const uint32_t* HWY_RESTRICT magnitudes, size_t count, uint32_t bound, size_t equal,
            uint16_t* HWY_RESTRICT positions) {
  const hn::ScalableTag<int32_t> d;
  const size_t lanes = hn::Lanes(d);
  const auto least = hn::Set(d, static_cast<int32_t>(bound));
  size_t found = 0;
  for (size_t i = 0; i < count; i += lanes) {
    const auto magnitude = hn::Load(d, reinterpret_cast<const int32_t*>(magnitudes) + i);
    const auto candidate = hn::Not(hn::Lt(magnitude, least));
    if (HWY_LIKELY(hn::AllFalse(d, candidate))) continue;
    for (size_t p = i; p < std::min(i + lanes, count); ++p) {
      if (magnitudes[p] < bound || (magnitudes[p] == bound && equal == 0)) continue;
      if (magnitudes[p] == bound) --equal;
      positions[found++] = static_cast<uint16_t>(p);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace syncgrads
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "absl/strings/str_cat.h"

namespace syncgrads {

HWY_EXPORT(Magnitudes);
HWY_EXPORT(CountAbove);
HWY_EXPORT(Select);

size_t TopKCodec::Kept(size_t count) const {
  return static_cast<size_t>(std::ceil(fraction_ * static_cast<double>(count)));
}

size_t TopKCodec::EncodedBytes(size_t count) const {
  return Kept(count) * (sizeof(uint16_t) + sizeof(float));
}

void TopKCodec::Encode(const float* values, size_t count, std::byte* out) const {
  const size_t kept = Kept(count);
  alignas(64) uint32_t magnitudes[kCodecBlock];
  uint32_t high = HWY_DYNAMIC_DISPATCH(Magnitudes)(values, count, magnitudes);
  // The k-th largest: the least number that fewer than k are above.
  uint32_t low = 0;
  size_t above_high = 0;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const size_t above = HWY_DYNAMIC_DISPATCH(CountAbove)(magnitudes, count, middle);
    if (above < kept) {
      high = middle;
      above_high = above;
    } else {
      low = middle + 1;
    }
  }
  uint16_t positions[kCodecBlock];
  HWY_DYNAMIC_DISPATCH(Select)(magnitudes, count, high, kept - above_high, positions);
  std::memcpy(out, positions, kept * sizeof(uint16_t));
  out += kept * sizeof(uint16_t);
  for (size_t i = 0; i < kept; ++i) {
    std::memcpy(out + i * sizeof(float), values + positions[i], sizeof(float));
  }
}

absl::Status TopKCodec::Check(const std::byte* encoded, size_t count) const {
  const size_t kept = Kept(count);
  const std::byte* const values = encoded + kept * sizeof(uint16_t);
  int before = -1;
  for (size_t i = 0; i < kept; ++i) {
    uint16_t position;
    float value;
    std::memcpy(&position, encoded + i * sizeof(position), sizeof(position));
    std::memcpy(&value, values + i * sizeof(value), sizeof(value));
    if (position >= count) {
      return absl::InvalidArgumentError(
          absl::StrCat("top-k has position ", position, " of a block with ", count, " elements"));
    }
    if (position <= before) {
      return absl::InvalidArgumentError(
          absl::StrCat("position ", position, " of top-k follows ", before, "; they must ascend"));
    }
    if (!std::isfinite(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("top-k has the value ", value, " at position ", position));
    }
    before = position;
  }
  return absl::OkStatus();
}

void TopKCodec::Decode(const std::byte* encoded, size_t count, float* values) const {
  const size_t kept = Kept(count);
  const std::byte* const sent = encoded + kept * sizeof(uint16_t);
  std::memset(values, 0, count * sizeof(float));
  for (size_t i = 0; i < kept; ++i) {
    uint16_t position;
    std::memcpy(&position, encoded + i * sizeof(position), sizeof(position));
    if (position < count) {
      std::memcpy(values + position, sent + i * sizeof(float), sizeof(float));
    }
  }
}

}  // namespace syncgrads

#endif  // HWY_ONCE
