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
// do. How large an element must be to be sent is found by bisection, among those that
// can be: a block is seen as rows of kTopKColumns elements, and the k-th largest of the
// columns' maxima is no more than the k-th largest of all, so that few are left.

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

// Of all of a block.
void ColumnMaxima(const uint32_t* HWY_RESTRICT magnitudes, uint32_t* HWY_RESTRICT maxima) {
  const hn::CappedTag<uint32_t, kTopKColumns> d;
  for (size_t column = 0; column < kTopKColumns; column += hn::Lanes(d)) {
    auto largest = hn::Load(d, magnitudes + column);
    for (size_t i = column + kTopKColumns; i < kCodecBlock; i += kTopKColumns) {
      largest = hn::Max(largest, hn::Load(d, magnitudes + i));
    }
    hn::Store(largest, d, maxima + column);
  }
}

// Writes those of `count` (rounded as below) that are `least` or above, and zeros to the
// end of a vector; returns how many there are.
size_t Gather(const uint32_t* HWY_RESTRICT magnitudes, size_t count, uint32_t least,
              uint32_t* HWY_RESTRICT out) {
  const hn::CappedTag<int32_t, kTopKColumns> d;
  const size_t lanes = hn::Lanes(d);
  const auto bound = hn::Set(d, static_cast<int32_t>(least));
  auto* const to = reinterpret_cast<int32_t*>(out);
  size_t found = 0;
  for (size_t i = 0; i < count; i += lanes) {
    const auto magnitude = hn::Load(d, reinterpret_cast<const int32_t*>(magnitudes) + i);
    const auto wanted = hn::Not(hn::Lt(magnitude, bound));
    if (HWY_LIKELY(hn::AllFalse(d, wanted))) continue;
    found += hn::CompressStore(magnitude, wanted, d, to + found);
  }
  hn::StoreU(hn::Zero(d), d, to + found);
  return found;
}

// How many of `count` (rounded up to vectors; the rest are zeros) are above `bound`.
size_t CountAbove(const uint32_t* HWY_RESTRICT magnitudes, size_t count, uint32_t bound) {
  // As signed numbers: few processors compare others.
  const hn::CappedTag<int32_t, kTopKColumns> d;
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
HWY_EXPORT(ColumnMaxima);
HWY_EXPORT(Gather);
HWY_EXPORT(CountAbove);
HWY_EXPORT(Select);

namespace {

struct Bound {
  uint32_t value;
  size_t above;  // so many are above it
};

// The k-th largest of `count`, which is from `least` to `largest`: the least number that
// fewer than k are above.
Bound KthLargest(const uint32_t* magnitudes, size_t count, size_t k, uint32_t least,
                 uint32_t largest) {
  Bound bound = {largest, 0};
  while (least < bound.value) {
    const uint32_t middle = least + (bound.value - least) / 2;
    const size_t above = HWY_DYNAMIC_DISPATCH(CountAbove)(magnitudes, count, middle);
    if (above < k) {
      bound = {middle, above};
    } else {
      least = middle + 1;
    }
  }
  return bound;
}

// The same, of a block that is filled up with zeros.
Bound BoundOf(const uint32_t* magnitudes, size_t count, size_t k, uint32_t largest) {
  // More than half of the columns: more elements would be left than it is worth.
  if (k > kTopKColumns / 2) return KthLargest(magnitudes, count, k, 0, largest);
  alignas(64) uint32_t maxima[kTopKColumns];
  HWY_DYNAMIC_DISPATCH(ColumnMaxima)(magnitudes, maxima);
  const uint32_t least = KthLargest(maxima, kTopKColumns, k, 0, largest).value;
  // A vector is written at the end, whatever is in it.
  alignas(64) uint32_t candidates[kCodecBlock + kTopKColumns];
  const size_t found = HWY_DYNAMIC_DISPATCH(Gather)(magnitudes, count, least, candidates);
  return KthLargest(candidates, found, k, least, largest);
}

}  // namespace

size_t TopKCodec::Kept(size_t count) const {
  return static_cast<size_t>(std::ceil(fraction_ * static_cast<double>(count)));
}

size_t TopKCodec::EncodedBytes(size_t count) const {
  return Kept(count) * (sizeof(uint16_t) + sizeof(float));
}

void TopKCodec::Encode(const float* values, size_t count, std::byte* out) const {
  const size_t kept = Kept(count);
  alignas(64) uint32_t magnitudes[kCodecBlock];
  const uint32_t largest = HWY_DYNAMIC_DISPATCH(Magnitudes)(values, count, magnitudes);
  const Bound bound = BoundOf(magnitudes, count, kept, largest);
  uint16_t positions[kCodecBlock];
  HWY_DYNAMIC_DISPATCH(Select)(magnitudes, count, bound.value, kept - bound.above, positions);
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
