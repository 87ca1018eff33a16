#include "common/kernels/finite.h"

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/kernels/reduce.h"
#include "gtest/gtest.h"
#include "tests/common/kernels/awkward.h"
#include "tests/common/kernels/every_target.h"

namespace syncgrads {
namespace {

// The bits of infinity and of the sign. All other values that are not finite, and the largest
// finite number, are derived from these.
struct Strange {
  DType dtype;
  uint64_t infinity;
  uint64_t sign;
};
constexpr Strange kStrange[] = {
    {DType::kF64, 0x7ff0000000000000, 0x8000000000000000},
    {DType::kF32, 0x7f800000, 0x80000000},
    {DType::kF16, 0x7c00, 0x8000},
    {DType::kBF16, 0x7f80, 0x8000},
};

std::vector<uint64_t> NonFinite(const Strange& strange) {
  return {strange.infinity, strange.infinity | strange.sign, strange.infinity | 1, strange.sign - 1,
          strange.infinity | strange.sign | 1};
}

void Put(Bytes& bytes, DType dtype, size_t i, uint64_t bits) {
  std::memcpy(bytes.data() + i * SizeOf(dtype), &bits, SizeOf(dtype));
}

TEST(FiniteTest, FindsEveryStrangeNumberAtEveryPlace) {
  static constexpr size_t kCount = 300;
  OnEveryTarget([] {
    for (const Strange& strange : kStrange) {
      const uint64_t largest = strange.infinity - 1;
      for (const uint64_t bits : NonFinite(strange)) {
        for (size_t at = 0; at < kCount; at += at < 70 ? 1 : 23) {
          Bytes bytes(kCount * SizeOf(strange.dtype), 1);
          for (size_t i = 0; i < kCount; ++i) {
            Put(bytes, strange.dtype, i, i % 2 == 0 ? largest : largest | strange.sign);
          }
          ASSERT_TRUE(AllFinite(strange.dtype, bytes.data(), kCount));
          ASSERT_EQ(FirstNonFinite(strange.dtype, bytes.data(), kCount), kCount);
          Put(bytes, strange.dtype, at, bits);
          Put(bytes, strange.dtype, kCount - 1, bits);
          ASSERT_FALSE(AllFinite(strange.dtype, bytes.data(), kCount))
              << NameOf(strange.dtype) << absl::StrCat(" ", absl::Hex(bits)) << " at " << at;
          ASSERT_EQ(FirstNonFinite(strange.dtype, bytes.data(), kCount), at)
              << NameOf(strange.dtype) << absl::StrCat(" ", absl::Hex(bits));
        }
      }
    }
  });
}

TEST(FiniteTest, IntegersAre) {
  const int64_t all_bits = -1;
  EXPECT_TRUE(AllFinite(DType::kI64, reinterpret_cast<const std::byte*>(&all_bits), 1));
  EXPECT_TRUE(AllFinite(DType::kI32, reinterpret_cast<const std::byte*>(&all_bits), 2));
}

// If a source is not finite, the average is not finite. The closing of rounds relies on this.
TEST(FiniteTest, AnAverageSaysWhetherAllItsSourcesAre) {
  std::mt19937_64 random(20240517);
  OnEveryTarget([&random] {
    for (const Strange& strange : kStrange) {
      for (const size_t members : {1, 2, 3, 9}) {
        for (const size_t count : {1, 5, 64, 1000, 9001}) {
          for (const bool weighted : {false, true}) {
            std::vector<Bytes> data;
            std::vector<WeightedSource> sources;
            for (size_t m = 0; m < members; ++m) {
              data.emplace_back(count * SizeOf(strange.dtype), m % 3);
              for (size_t i = 0; i < count; ++i) Put(data.back(), strange.dtype, i, random() % 99);
            }
            for (const Bytes& one : data) {
              sources.push_back({one.data(), weighted ? 0.25 + sources.size() : 1});
            }
            Bytes out(count * SizeOf(strange.dtype), 0);
            ASSERT_TRUE(
                ReduceFinite(strange.dtype, Reduction::kAverage, sources, count, out.data()));
            for (const uint64_t bits : NonFinite(strange)) {
              const size_t at = random() % count;
              Bytes& one = data[random() % members];
              Put(one, strange.dtype, at, bits);
              ASSERT_FALSE(
                  ReduceFinite(strange.dtype, Reduction::kAverage, sources, count, out.data()))
                  << NameOf(strange.dtype) << absl::StrCat(" ", absl::Hex(bits)) << " at " << at
                  << " of " << count << " from " << members;
              Put(one, strange.dtype, at, 0);
            }
          }
        }
      }
    }
  });
}

TEST(FiniteTest, InfinitiesOfBothSignsDoNotCancel) {
  const float up = std::numeric_limits<float>::infinity(), down = -up;
  float out = 0;
  const auto bytes = [](const float& x) { return reinterpret_cast<const std::byte*>(&x); };
  EXPECT_FALSE(ReduceFinite(DType::kF32, Reduction::kAverage, {{bytes(up)}, {bytes(down)}}, 1,
                            reinterpret_cast<std::byte*>(&out)));
}

TEST(FiniteTest, ASumOfFiniteNumbersCanBeTooLarge) {
  const float most = std::numeric_limits<float>::max();
  float out = 0;
  const std::byte* const bytes = reinterpret_cast<const std::byte*>(&most);
  EXPECT_FALSE(ReduceFinite(DType::kF32, Reduction::kAverage, {{bytes}, {bytes}}, 1,
                            reinterpret_cast<std::byte*>(&out)));
}

}  // namespace
}  // namespace syncgrads
