#include "common/codec/one_bit.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/codec/one_bit.cc"
// clang-format off
#include "hwy/foreach_target.h"  // Includes this file once per instruction set.
// clang-format on
// foreach_target.h comes first, because the headers below are compiled for each instruction set.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace syncgrads {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Number of sign bits that are packed into one word.
constexpr size_t kWord = 64;

// Writes the partial sums of the magnitudes times 2^-8, and the sign bits, of a whole group. The
// sums are kept in registers while elements are added.
void SumAndSigns(const float* HWY_RESTRICT values, float* HWY_RESTRICT sums,
                 uint8_t* HWY_RESTRICT bits) {
  const hn::CappedTag<float, kOneBitSums> d;
  const size_t lanes = hn::Lanes(d);
  const auto unit = hn::Set(d, 0x1p-8f);
  for (size_t k = 0; k < kOneBitSums; k += lanes) {
    auto sum = hn::Zero(d);
    for (size_t i = k; i < kOneBitGroup; i += kOneBitSums) {
      sum = hn::Add(sum, hn::Mul(hn::Abs(hn::LoadU(d, values + i)), unit));
    }
    hn::Store(sum, d, sums + k);
  }
  for (size_t begin = 0; begin < kOneBitGroup; begin += kWord) {
    uint64_t word = 0;
    for (size_t i = 0; i < kWord; i += lanes) {
      const auto v = hn::LoadU(d, values + begin + i);
      uint8_t stored[8] = {};
      hn::StoreMaskBits(d, hn::Lt(v, hn::Zero(d)), stored);
      uint64_t part;
      std::memcpy(&part, stored, sizeof(part));
      word |= part << i;
    }
    std::memcpy(bits + begin / 8, &word, sizeof(word));
  }
}

// Decodes a whole group: writes -scale if an element's bit is 1, and scale otherwise.
void ApplySigns(const uint8_t* HWY_RESTRICT bits, float scale, float* HWY_RESTRICT values) {
  const hn::CappedTag<float, kOneBitSums> d;
  const auto positive = hn::Set(d, scale);
  const auto negative = hn::Set(d, -scale);
  for (size_t begin = 0; begin < kOneBitGroup; begin += kWord) {
    uint64_t word;
    std::memcpy(&word, bits + begin / 8, sizeof(word));
    for (size_t i = 0; i < kWord; i += hn::Lanes(d)) {
      const uint64_t part = word >> i;
      uint8_t loaded[8];
      std::memcpy(loaded, &part, sizeof(part));
      hn::StoreU(hn::IfThenElse(hn::LoadMaskBits(d, loaded), negative, positive), d,
                 values + begin + i);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace syncgrads
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "absl/strings/str_cat.h"

namespace syncgrads {

HWY_EXPORT(SumAndSigns);
HWY_EXPORT(ApplySigns);

namespace {

size_t BitBytes(size_t elements) { return (elements + 7) / 8; }

float MeanOf(float (&sums)[kOneBitSums], size_t elements) {
  for (size_t half = kOneBitSums / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) sums[i] += sums[half + i];
  }
  // Rounding may turn a mean near the largest float into infinity.
  return std::min(sums[0] * (0x1p8f / static_cast<float>(elements)),
                  std::numeric_limits<float>::max());
}

}  // namespace

size_t OneBitCodec::EncodedBytes(size_t count) const {
  const size_t groups = (count + kOneBitGroup - 1) / kOneBitGroup;
  return groups * sizeof(float) + BitBytes(count);
}

void OneBitCodec::Encode(const float* values, size_t count, std::byte* out) const {
  for (size_t begin = 0; begin < count; begin += kOneBitGroup) {
    const size_t elements = std::min(count - begin, kOneBitGroup);
    alignas(64) float sums[kOneBitSums];
    alignas(64) float padded[kOneBitGroup];
    uint8_t bits[kOneBitGroup / 8];
    const float* group = values + begin;
    if (elements < kOneBitGroup) {
      std::memcpy(padded, group, elements * sizeof(float));
      std::memset(padded + elements, 0, (kOneBitGroup - elements) * sizeof(float));
      group = padded;
    }
    HWY_DYNAMIC_DISPATCH(SumAndSigns)(group, sums, bits);
    const float scale = MeanOf(sums, elements);
    std::memcpy(out, &scale, sizeof(scale));
    std::memcpy(out + sizeof(scale), bits, BitBytes(elements));
    out += sizeof(scale) + BitBytes(elements);
  }
}

absl::Status OneBitCodec::Check(const std::byte* encoded, size_t count) const {
  for (size_t begin = 0; begin < count; begin += kOneBitGroup) {
    const size_t elements = std::min(count - begin, kOneBitGroup);
    float scale;
    std::memcpy(&scale, encoded, sizeof(scale));
    if (!(scale >= 0) || !std::isfinite(scale)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a scale of one-bit is ", scale, "; must be finite and not negative"));
    }
    encoded += sizeof(scale) + BitBytes(elements);
    if (elements % 8 != 0 && static_cast<uint8_t>(encoded[-1]) >> elements % 8 != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("one-bit has bits beyond the last ", elements, " elements of a block"));
    }
  }
  return absl::OkStatus();
}

void OneBitCodec::Decode(const std::byte* encoded, size_t count, float* values) const {
  for (size_t begin = 0; begin < count; begin += kOneBitGroup) {
    const size_t elements = std::min(count - begin, kOneBitGroup);
    float scale;
    std::memcpy(&scale, encoded, sizeof(scale));
    uint8_t bits[kOneBitGroup / 8] = {};
    std::memcpy(bits, encoded + sizeof(scale), BitBytes(elements));
    if (elements == kOneBitGroup) {
      HWY_DYNAMIC_DISPATCH(ApplySigns)(bits, scale, values + begin);
    } else {
      alignas(64) float decoded[kOneBitGroup];
      HWY_DYNAMIC_DISPATCH(ApplySigns)(bits, scale, decoded);
      std::memcpy(values + begin, decoded, elements * sizeof(float));
    }
    encoded += sizeof(scale) + BitBytes(elements);
  }
}

}  // namespace syncgrads

#endif  // HWY_ONCE
