#include "common/codec/top_k.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/codec/top_k.cc"
// clang-format off
#include "hwy/foreach_target.h"  // Includes this file once per instruction set.
// clang-format on
// foreach_target.h comes first, because the headers below are compiled for each instruction set.
#include "hwy/highway.h"

// Magnitudes are compared by their bits, which order finite numbers like their values. The smallest
// magnitude that is sent is found by bisection over a few candidates. To find these, a block is
// seen as rows of kTopKColumns elements: the k-th largest of the columns' maxima is at most the
// k-th largest magnitude of all, so smaller elements cannot be among the k largest.

HWY_BEFORE_NAMESPACE();
namespace syncgrads {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Writes the bits of the magnitudes to `out`, and zeros after them up to kCodecBlock. Returns the
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

// Writes the maximum of each column of a whole block.
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

// Writes the magnitudes that are at least `least` to `found`, then zeros up to the end of a vector,
// and their positions to `positions`. Returns their number. `count` is rounded up to whole vectors;
// the magnitudes after `count` are zeros.
size_t Gather(const uint32_t* HWY_RESTRICT magnitudes, size_t count, uint32_t least,
              uint32_t* HWY_RESTRICT found, uint32_t* HWY_RESTRICT positions) {
  const hn::CappedTag<int32_t, kTopKColumns> d;
  const hn::RebindToUnsigned<decltype(d)> bits;
  const size_t lanes = hn::Lanes(d);
  const auto bound = hn::Set(d, static_cast<int32_t>(least));
  size_t written = 0;
  for (size_t i = 0; i < count; i += lanes) {
    const auto magnitude = hn::Load(d, reinterpret_cast<const int32_t*>(magnitudes) + i);
    const auto wanted = hn::Not(hn::Lt(magnitude, bound));
    if (HWY_LIKELY(hn::AllFalse(d, wanted))) continue;
    // Compresses in registers and then stores: compressing to memory is slow on some processors.
    const auto here = hn::Iota(d, static_cast<int32_t>(i));
    hn::StoreU(hn::BitCast(bits, hn::Compress(magnitude, wanted)), bits, found + written);
    hn::StoreU(hn::BitCast(bits, hn::Compress(here, wanted)), bits, positions + written);
    written += hn::CountTrue(d, wanted);
  }
  hn::StoreU(hn::Zero(bits), bits, found + written);
  return written;
}

// Returns how many of `count` magnitudes are above `bound`. `count` is rounded up to whole vectors;
// the magnitudes after `count` are zeros.
size_t CountAbove(const uint32_t* HWY_RESTRICT magnitudes, size_t count, uint32_t bound) {
  // Compares signed numbers, because few processors compare unsigned ones. Magnitudes are not
  // negative.
  const hn::CappedTag<int32_t, kTopKColumns> d;
  const size_t lanes = hn::Lanes(d);
  const auto least = hn::Set(d, static_cast<int32_t>(bound));
  auto above = hn::Zero(d);
  for (size_t i = 0; i < count; i += lanes) {
    const auto magnitude = hn::Load(d, reinterpret_cast<const int32_t*>(magnitudes) + i);
    // A lane of a mask is -1 if it is true.
    above = hn::Sub(above, hn::VecFromMask(d, hn::Gt(magnitude, least)));
  }
  return static_cast<size_t>(hn::GetLane(hn::SumOfLanes(d, above)));
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

namespace {

struct Bound {
  uint32_t value;
  size_t above;  // how many magnitudes are above `value`
};

// Returns a number such that k to k + slack of `count` magnitudes are above it. If magnitudes are
// equal, there may be no such number; then returns the k-th largest, and fewer than k are above it.
// `largest` is the largest of all magnitudes.
Bound FindBound(const uint32_t* magnitudes, size_t count, size_t k, size_t slack,
                uint32_t largest) {
  uint32_t least = 0;
  Bound bound = {largest, 0};
  while (least < bound.value) {
    const uint32_t middle = least + (bound.value - least) / 2;
    const size_t above = HWY_DYNAMIC_DISPATCH(CountAbove)(magnitudes, count, middle);
    if (above < k) {
      bound = {middle, above};
    } else if (above <= k + slack) {
      return {middle, above};
    } else {
      least = middle + 1;
    }
  }
  return bound;
}

// The magnitudes of some elements of a block and their positions in it. After the last element,
// both arrays have room for one more vector, because Gather stores whole vectors.
struct Candidates {
  size_t count;
  alignas(64) uint32_t magnitudes[kCodecBlock + kTopKColumns];
  alignas(64) uint32_t positions[kCodecBlock + kTopKColumns];
};

// Collects the elements that can be among the k largest. Sets `largest` to the largest magnitude.
void FindCandidates(const float* values, size_t count, size_t k, Candidates& out,
                    uint32_t& largest) {
  alignas(64) uint32_t magnitudes[kCodecBlock];
  largest = HWY_DYNAMIC_DISPATCH(Magnitudes)(values, count, magnitudes);
  uint32_t least = 0;
  // If k is more than half of the columns, most elements would be candidates.
  if (k <= kTopKColumns / 2) {
    alignas(64) uint32_t maxima[kTopKColumns];
    HWY_DYNAMIC_DISPATCH(ColumnMaxima)(magnitudes, maxima);
    const Bound bound = FindBound(maxima, kTopKColumns, k, k / 4, largest);
    least = bound.above < k ? bound.value : bound.value + 1;
  }
  out.count = HWY_DYNAMIC_DISPATCH(Gather)(magnitudes, count, least, out.magnitudes, out.positions);
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
  Candidates candidates;
  uint32_t largest;
  FindCandidates(values, count, kept, candidates, largest);
  const Bound bound = FindBound(candidates.magnitudes, candidates.count, kept, 0, largest);
  // The number of elements with a magnitude equal to the bound that are sent: the first ones.
  size_t equal = kept - bound.above;
  uint16_t positions[kCodecBlock + kTopKColumns];
  size_t found = 0;
  for (size_t i = 0; i < candidates.count; ++i) {
    // This loop has no branches, because they would not be predictable.
    const bool is_equal = candidates.magnitudes[i] == bound.value && equal > 0;
    positions[found] = static_cast<uint16_t>(candidates.positions[i]);
    found += static_cast<size_t>(is_equal || candidates.magnitudes[i] > bound.value);
    equal -= static_cast<size_t>(is_equal);
  }
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
      return absl::InvalidArgumentError(absl::StrCat("top-k has the invalid position ", position,
                                                     " in a block with ", count, " elements"));
    }
    if (position <= before) {
      return absl::InvalidArgumentError(
          absl::StrCat("position ", position, " of top-k follows ", before, "; they must ascend"));
    }
    if (!std::isfinite(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("top-k has the non-finite value ", value, " at position ", position));
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
