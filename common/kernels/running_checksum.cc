#include "common/kernels/running_checksum.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/kernels/running_checksum.cc"
// clang-format off
#include "hwy/foreach_target.h"  // Includes this file once per instruction set.
// clang-format on
#include "common/kernels/stripes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace syncgrads {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR || HWY_HAVE_SCALABLE

uint64_t Word(const void* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

void EndBlock(StripeSums& to) {
  to.in_block = 0;
  const uint8_t* const keys = StripeKeys() + StripeSums::kKeyBytes - StripeSums::kStripeBytes;
  for (size_t i = 0; i < 8; ++i) {
    to.sums[i] = (to.sums[i] ^ (to.sums[i] >> 47) ^ Word(keys + i * 8)) * 0x9E3779B1u;
  }
}

void AddStripes(const std::byte* data, size_t stripes, StripeSums& to) {
  for (size_t stripe = 0; stripe < stripes; ++stripe, data += StripeSums::kStripeBytes) {
    for (size_t i = 0; i < 8; ++i) {
      const uint64_t word = Word(data + i * 8);
      const uint64_t keyed = word ^ Word(StripeKeys() + (to.in_block + i) * 8);
      to.sums[i ^ 1] += word;
      to.sums[i] += (keyed & 0xFFFFFFFFu) * (keyed >> 32);
    }
    if (++to.in_block == StripeSums::kStripesPerBlock) EndBlock(to);
  }
  to.left -= stripes;
}

#else

void AddStripes(const std::byte* data, size_t stripes, StripeSums& to) {
  VectorSums sums(&to);
  const hn::Repartition<uint8_t, VectorSums::D> bytes;
  const auto* from = reinterpret_cast<const uint8_t*>(data);
  const auto load = [&](size_t i) HWY_ATTR {
    return hn::BitCast(VectorSums::D(), hn::LoadU(bytes, from + i * VectorSums::kVectorBytes));
  };
  for (size_t i = 0; i < stripes; ++i, from += StripeSums::kStripeBytes) {
    sums.Add<0>(load(0));
    if constexpr (VectorSums::kVectors > 1) sums.Add<1>(load(1));
    if constexpr (VectorSums::kVectors > 2) {
      sums.Add<2>(load(2));
      sums.Add<3>(load(3));
    }
  }
  sums.Keep(stripes);
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace syncgrads
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include <array>

#include "common/kernels/require.h"

namespace syncgrads {

HWY_EXPORT(AddStripes);

namespace {

constexpr uint64_t kPrime32_1 = 0x9E3779B1;
constexpr uint64_t kPrime32_2 = 0x85EBCA77;
constexpr uint64_t kPrime32_3 = 0xC2B2AE3D;
constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87;
constexpr uint64_t kPrime64_2 = 0xC2B2AE3D27D4EB4F;
constexpr uint64_t kPrime64_3 = 0x165667B19E3779F9;
constexpr uint64_t kPrime64_4 = 0x85EBCA77C2B2AE63;
constexpr uint64_t kPrime64_5 = 0x27D4EB2F165667C5;

// Positions of the keys that Finish uses for the last stripe and for merging the sums.
constexpr size_t kLastStripeKey = StripeSums::kKeyBytes - StripeSums::kStripeBytes - 7;
constexpr size_t kMergeKey = 11;

uint64_t KeyWord(size_t at) {
  uint64_t word;
  std::memcpy(&word, StripeKeys() + at, sizeof(word));
  return word;
}

// Returns the XOR of both halves of the 128-bit product.
uint64_t FoldedProduct(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

const uint8_t* StripeKeys() {
  static const auto* const keys = [] {
    auto* made = new std::array<uint8_t, StripeSums::kKeyBytes>;
    static_assert(StripeSums::kKeyBytes == XXH3_SECRET_DEFAULT_SIZE);
    XXH3_generateSecret_fromSeed(made->data(), 0);
    return made;
  }();
  return keys->data();
}

RunningChecksum::RunningChecksum(size_t bytes)
    : bytes_(bytes),
      stripes_{{kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3, kPrime64_4, kPrime32_2, kPrime64_5,
                kPrime32_1},
               0,
               (bytes - 1) / StripeSums::kStripeBytes} {
  Require(bytes >= kLeastBytes, "a running checksum of a long array");
}

void RunningChecksum::Add(const std::byte* data, size_t bytes) {
  if (begun_bytes_ > 0) {
    const size_t part = std::min(bytes, sizeof(begun_) - begun_bytes_);
    std::memcpy(begun_ + begun_bytes_, data, part);
    begun_bytes_ += part;
    data += part;
    bytes -= part;
    if (begun_bytes_ < sizeof(begun_)) return;
    begun_bytes_ = 0;
    if (stripes_.left > 0) HWY_DYNAMIC_DISPATCH(AddStripes)(begun_, 1, stripes_);
  }
  const size_t stripes = std::min(bytes / StripeSums::kStripeBytes, stripes_.left);
  if (stripes > 0) HWY_DYNAMIC_DISPATCH(AddStripes)(data, stripes, stripes_);
  if (stripes_.left == 0) return;  // Finish reads the last stripe from the array
  begun_bytes_ = bytes - stripes * StripeSums::kStripeBytes;
  std::memcpy(begun_, data + stripes * StripeSums::kStripeBytes, begun_bytes_);
}

StripeSums* RunningChecksum::TakeStripes(size_t stripes) {
  return begun_bytes_ == 0 && stripes <= stripes_.left ? &stripes_ : nullptr;
}

uint64_t RunningChecksum::Finish(const std::byte* end) const {
  Require(stripes_.left == 0, "a checksum of all of an array");
  uint64_t hash = bytes_ * kPrime64_1;
  uint64_t sums[8];
  std::memcpy(sums, stripes_.sums, sizeof(sums));
  for (size_t i = 0; i < 8; ++i) {
    uint64_t word;
    std::memcpy(&word, end - StripeSums::kStripeBytes + i * 8, sizeof(word));
    const uint64_t keyed = word ^ KeyWord(kLastStripeKey + i * 8);
    sums[i ^ 1] += word;
    sums[i] += (keyed & 0xFFFFFFFF) * (keyed >> 32);
  }
  for (size_t i = 0; i < 8; i += 2) {
    hash += FoldedProduct(sums[i] ^ KeyWord(kMergeKey + i * 8),
                          sums[i + 1] ^ KeyWord(kMergeKey + (i + 1) * 8));
  }
  hash = (hash ^ (hash >> 37)) * 0x165667919E3779F9;
  return hash ^ (hash >> 32);
}

}  // namespace syncgrads

#endif  // HWY_ONCE
