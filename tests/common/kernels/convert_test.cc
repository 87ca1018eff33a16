#include "common/kernels/convert.h"

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "absl/base/casts.h"
#include "common/dtype.h"
#include "common/kernels/reference.h"
#include "gtest/gtest.h"
#include "tests/common/kernels/awkward.h"
#include "tests/common/kernels/every_target.h"

namespace syncgrads {
namespace {

float Widened(DType dtype, uint16_t bits) {
  float out = 0;
  ToFloat(dtype, reinterpret_cast<const std::byte*>(&bits), 1, &out);
  return out;
}

uint16_t Narrowed(DType dtype, float value) {
  uint16_t out = 0;
  FromFloat(&value, 1, dtype, reinterpret_cast<std::byte*>(&out));
  return out;
}

uint16_t ReferenceOf(DType dtype, float value) {
  return dtype == DType::kF16 ? reference::F16OfFloat(value) : reference::BF16OfFloat(value);
}

TEST(ConvertTest, WidensEveryValueAlikeOnEveryTarget) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<float> want(all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      want[i] =
          dtype == DType::kF16 ? reference::FloatOfF16(all[i]) : reference::FloatOfBF16(all[i]);
      uint32_t bits = absl::bit_cast<uint32_t>(want[i]);
      if ((bits & 0x7fffffff) > 0x7f800000) bits |= 0x00400000;  // a quiet NaN
      want[i] = absl::bit_cast<float>(bits);
    }
    OnEveryTarget([&] {
      std::vector<float> got(all.size());
      ToFloat(dtype, reinterpret_cast<const std::byte*>(all.data()), all.size(), got.data());
      EXPECT_TRUE(SameBits(DType::kF32, reinterpret_cast<const std::byte*>(got.data()),
                           reinterpret_cast<const std::byte*>(want.data()), want.size()));
    });
  }
}

TEST(ConvertTest, NarrowsAlikeOnEveryTarget) {
  // Every upper half of a float32, combined with lower halves next to the points where rounding to
  // f16 and to bf16 changes.
  std::vector<float> values;
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (const uint32_t lower : {0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001,
                                 0x7fff, 0x8000, 0x8001, 0xefff, 0xf000, 0xffff}) {
      values.push_back(absl::bit_cast<float>(upper << 16 | lower));
    }
  }
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    std::vector<uint16_t> want;
    for (const float value : values) want.push_back(ReferenceOf(dtype, value));
    OnEveryTarget([&] {
      std::vector<uint16_t> got(values.size());
      FromFloat(values.data(), values.size(), dtype, reinterpret_cast<std::byte*>(got.data()));
      EXPECT_TRUE(SameBits(dtype, reinterpret_cast<const std::byte*>(got.data()),
                           reinterpret_cast<const std::byte*>(want.data()), want.size()));
    });
  }
}

TEST(ConvertTest, TakesAnyLengthAndAlignment) {
  std::mt19937_64 random(1);
  OnEveryTarget([&] {
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
      for (size_t count = 0; count < 70; ++count) {
        const Bytes in = AwkwardElements(dtype, count, 1, random);
        std::vector<float> wide(count);
        ToFloat(dtype, in.data(), count, wide.data());
        Bytes back(in.size(), 3);
        FromFloat(wide.data(), count, dtype, back.data());
        for (size_t i = 0; i < count; ++i) {
          if (wide[i] != wide[i]) continue;  // A NaN: the result is a quiet NaN with other bits.
          EXPECT_TRUE(
              SameBits(dtype, back.data() + i * SizeOf(dtype), in.data() + i * SizeOf(dtype), 1));
        }
      }
    }
  });
}

TEST(ConvertTest, RoundsToNearestEven) {
  OnEveryTarget([] {
    EXPECT_EQ(Widened(DType::kF16, Narrowed(DType::kF16, 2049)), 2048);
    EXPECT_EQ(Widened(DType::kF16, Narrowed(DType::kF16, 2051)), 2052);
    EXPECT_EQ(Widened(DType::kBF16, Narrowed(DType::kBF16, 257)), 256);
    EXPECT_EQ(Widened(DType::kBF16, Narrowed(DType::kBF16, 259)), 260);
  });
}

TEST(ConvertTest, OverflowsToInfinity) {
  OnEveryTarget([] {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(Widened(DType::kF16, Narrowed(DType::kF16, 65519)), 65504);
    EXPECT_EQ(Widened(DType::kF16, Narrowed(DType::kF16, 65520)), kInfinity);
    EXPECT_EQ(Widened(DType::kF16, Narrowed(DType::kF16, -1e30f)), -kInfinity);
    EXPECT_EQ(Widened(DType::kBF16, Narrowed(DType::kBF16, std::numeric_limits<float>::max())),
              kInfinity);
  });
}

TEST(ConvertTest, KeepsSubnormalsAndTheSignOfZero) {
  OnEveryTarget([] {
    EXPECT_EQ(Widened(DType::kF16, 0x0001), 0x1p-24f);
    EXPECT_EQ(Narrowed(DType::kF16, 0x1p-24f), 0x0001);
    EXPECT_EQ(Narrowed(DType::kF16, -0x1p-26f), 0x8000);
    EXPECT_EQ(Narrowed(DType::kBF16, -0x1p-149f), 0x8000);
  });
}

TEST(ConvertTest, KeepsNaNsAndMakesThemQuiet) {
  OnEveryTarget([] {
    EXPECT_EQ(absl::bit_cast<uint32_t>(Widened(DType::kF16, 0xfc01)), 0xffc02000);
    EXPECT_EQ(absl::bit_cast<uint32_t>(Widened(DType::kBF16, 0xff81)), 0xffc10000);
    EXPECT_EQ(Narrowed(DType::kF16, absl::bit_cast<float>(0xff800001)), 0xfe00);
    EXPECT_EQ(Narrowed(DType::kBF16, absl::bit_cast<float>(0xff800001)), 0xffc0);
  });
}

}  // namespace
}  // namespace syncgrads
