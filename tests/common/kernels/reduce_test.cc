#include "common/kernels/reduce.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/aligned_buffer.h"
#include "common/dtype.h"
#include "common/kernels/reference.h"
#include "common/update_rule.h"
#include "gtest/gtest.h"
#include "tests/common/kernels/awkward.h"
#include "tests/common/kernels/every_target.h"

namespace syncgrads {
namespace {

constexpr Reduction kReductions[] = {Reduction::kAverage, Reduction::kSum, Reduction::kMin,
                                     Reduction::kMax, Reduction::kProduct};
constexpr uint64_t kSeed = 20240517;

template <typename T>
std::vector<T> ReduceVectors(Reduction op, const std::vector<std::vector<T>>& inputs,
                             const std::vector<double>& weights = {}) {
  std::vector<WeightedSource> sources;
  for (size_t i = 0; i < inputs.size(); ++i) {
    sources.push_back(
        {reinterpret_cast<const std::byte*>(inputs[i].data()), weights.empty() ? 1.0 : weights[i]});
  }
  std::vector<T> out(inputs[0].size());
  Reduce(DTypeOf<T>::value, op, sources, out.size(), reinterpret_cast<std::byte*>(out.data()));
  return out;
}

// Contributions with difficult values, each with another alignment.
struct Contributions {
  Contributions(DType dtype, size_t members, size_t count, bool weighted, std::mt19937_64& random) {
    for (size_t i = 0; i < members; ++i) {
      data.push_back(AwkwardElements(dtype, count, i % 5, random));
      sources.push_back({data.back().data(), weighted ? 0.3 + static_cast<double>(i % 7) : 1.0});
    }
  }
  std::vector<Bytes> data;
  std::vector<WeightedSource> sources;
};

TEST(ReduceTest, HasTheBitsOfThePlainLoopOnEveryTarget) {
  std::mt19937_64 random(kSeed);
  for (const DType dtype : kAllDTypes) {
    for (const Reduction op : kReductions) {
      if (op == Reduction::kAverage && IsInteger(dtype)) continue;
      for (const bool weighted : {false, true}) {
        if (weighted && op != Reduction::kAverage) continue;
        for (const size_t members : {1, 2, 3, 4, 5, 8, 9, 67}) {
          for (const size_t count : {1, 7, 31, 64, 101, 1024, 2049, 4200}) {
            if (members > 9 && count != 101 && count != 2049) continue;
            SCOPED_TRACE(absl::StrCat(NameOf(dtype), " reduction ", static_cast<int>(op),
                                      weighted ? " weighted" : "", " of ", members, " x ", count,
                                      ", seed ", kSeed));
            const Contributions inputs(dtype, members, count, weighted, random);
            Bytes want(count * SizeOf(dtype), 0);
            reference::Reduce(dtype, op, inputs.sources, count, want.data());
            OnEveryTarget([&] {
              Bytes got(count * SizeOf(dtype), 3);
              Reduce(dtype, op, inputs.sources, count, got.data());
              EXPECT_TRUE(SameBits(dtype, got.data(), want.data(), count));
            });
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(ReduceTest, HasTheBitsOfThePlainLoopWhereResultsGoPastTheCaches) {
  std::mt19937_64 random(kSeed);
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kI32, DType::kBF16}) {
    for (const size_t members : {1, 3}) {
      for (const size_t count : {size_t{65'536}, size_t{150'007}}) {
        const Contributions inputs(dtype, members, count, false, random);
        Bytes want(count * SizeOf(dtype), 0);
        reference::Reduce(dtype, Reduction::kSum, inputs.sources, count, want.data());
        for (const size_t misaligned : {0, 4}) {
          SCOPED_TRACE(absl::StrCat(NameOf(dtype), " x ", count, " of ", members, " to ",
                                    misaligned, ", seed ", kSeed));
          OnEveryTarget([&] {
            AlignedBuffer out(want.size() + 64);
            std::memset(out.data(), 3, out.size());
            Reduce(dtype, Reduction::kSum, inputs.sources, count, out.data() + misaligned);
            EXPECT_TRUE(SameBits(dtype, out.data() + misaligned, want.data(), count));
            for (size_t i = misaligned + want.size(); i < out.size(); ++i) {
              ASSERT_EQ(out.data()[i], std::byte{3}) << "written beyond the end, at " << i;
            }
          });
        }
      }
    }
  }
}

TEST(ReduceTest, ChecksEachBlockOfASingleContribution) {
  constexpr size_t kCount = 150'007;
  std::vector<float> in(kCount, 1.5f);
  std::vector<float> out(kCount);
  const auto* const from = reinterpret_cast<const std::byte*>(in.data());
  auto* const to = reinterpret_cast<std::byte*>(out.data());
  const auto is_finite = [&](std::byte* into) {
    return ReduceFinite(DType::kF32, Reduction::kAverage, {{from}}, kCount, into);
  };
  EXPECT_TRUE(is_finite(to));
  for (const size_t at : {size_t{0}, size_t{2047}, size_t{2048}, kCount - 1}) {
    in[at] = std::numeric_limits<float>::infinity();
    EXPECT_FALSE(is_finite(to)) << "at " << at;
    EXPECT_EQ(std::memcmp(out.data(), in.data(), kCount * sizeof(float)), 0);
    EXPECT_FALSE(is_finite(reinterpret_cast<std::byte*>(in.data()))) << "in place, at " << at;
    in[at] = 1.5f;
  }
}

TEST(ReduceTest, OfOneContributorIsItsBits) {
  std::mt19937_64 random(kSeed);
  for (const DType dtype : kAllDTypes) {
    for (const Reduction op : kReductions) {
      if (op == Reduction::kAverage && IsInteger(dtype)) continue;
      const Bytes in = AwkwardElements(dtype, 1000, 1, random);
      Bytes out(in.size(), 0);
      Reduce(dtype, op, {{in.data(), 0.3}}, 1000, out.data());
      EXPECT_TRUE(SameBits(dtype, out.data(), in.data(), 1000));
    }
  }
}

TEST(ReduceTest, MayWriteOverAnyOfItsSources) {
  std::mt19937_64 random(kSeed);
  constexpr size_t kCount = 3001;
  constexpr size_t kMembers = 19;  // More than a kernel reads at the same time.
  for (const DType dtype : kAllDTypes) {
    for (const size_t over : {0, 1, 7, 8, 18}) {
      Contributions inputs(dtype, kMembers, kCount, false, random);
      Bytes want(kCount * SizeOf(dtype), 0);
      reference::Reduce(dtype, Reduction::kSum, inputs.sources, kCount, want.data());
      Reduce(dtype, Reduction::kSum, inputs.sources, kCount, inputs.data[over].data());
      EXPECT_TRUE(SameBits(dtype, inputs.data[over].data(), want.data(), kCount))
          << "over source " << over << ", seed " << kSeed;
    }
  }
}

TEST(ReduceTest, AveragesByWeight) {
  EXPECT_EQ(ReduceVectors<float>(Reduction::kAverage, {{1, -2}, {5, 2}}, {1, 3}),
            (std::vector<float>{4, 1}));
  EXPECT_EQ(ReduceVectors<double>(Reduction::kAverage, {{1}, {2}, {6}}), (std::vector<double>{3}));
}

TEST(ReduceTest, IgnoresWeightsUnlessItAverages) {
  EXPECT_EQ(ReduceVectors<float>(Reduction::kSum, {{1}, {5}}, {2, 3}), (std::vector<float>{6}));
  EXPECT_EQ(ReduceVectors<float>(Reduction::kMax, {{1}, {5}}, {9, 3}), (std::vector<float>{5}));
}

TEST(ReduceTest, AddsInTheOrderOfTheSources) {
  EXPECT_EQ(ReduceVectors<float>(Reduction::kSum, {{1e8f}, {1}, {-1e8f}}), (std::vector<float>{0}));
  EXPECT_EQ(ReduceVectors<float>(Reduction::kSum, {{1e8f}, {-1e8f}, {1}}), (std::vector<float>{1}));
}

TEST(ReduceTest, DoesNotFuseWeightAndAddition) {
  // 1.000244140625 squared needs one more bit than a float32 has. If the product is rounded first,
  // the sum is 0; if multiplication and addition are fused, it is 2^-24.
  const float weight = 1 + 0x1p-12f;
  const std::vector<std::vector<float>> inputs(2, std::vector<float>(100, weight));
  std::vector<std::vector<float>> terms = inputs;
  for (float& value : terms[0]) value = -(1 + 0x1p-11f);
  OnEveryTarget([&] {
    const std::vector<float> average = ReduceVectors(Reduction::kAverage, terms, {1, weight});
    for (const float value : average) EXPECT_EQ(value, 0);
  });
}

TEST(ReduceTest, StartsFromTheFirstContribution) {
  const std::vector<float> sum = ReduceVectors<float>(Reduction::kSum, {{-0.0f}, {-0.0f}});
  EXPECT_TRUE(std::signbit(sum[0]));
}

TEST(ReduceTest, RoundsHalvesOnceAtTheEnd) {
  // In f16, 2048 + 1 is 2048. In float32 both ones are counted.
  const std::vector<uint16_t> big = {reference::F16OfFloat(2048)};
  const std::vector<uint16_t> one = {reference::F16OfFloat(1)};
  uint16_t out = 0;
  const auto bytes = [](const auto& v) { return reinterpret_cast<const std::byte*>(v.data()); };
  Reduce(DType::kF16, Reduction::kSum, {{bytes(big)}, {bytes(one)}, {bytes(one)}}, 1,
         reinterpret_cast<std::byte*>(&out));
  EXPECT_EQ(reference::FloatOfF16(out), 2050);
}

TEST(ReduceTest, WrapsIntegers) {
  OnEveryTarget([] {
    constexpr int32_t kMax32 = std::numeric_limits<int32_t>::max();
    constexpr int64_t kMax64 = std::numeric_limits<int64_t>::max();
    EXPECT_EQ(ReduceVectors<int32_t>(Reduction::kSum, {{kMax32}, {1}}),
              (std::vector<int32_t>{-kMax32 - 1}));
    EXPECT_EQ(ReduceVectors<int64_t>(Reduction::kSum, {{kMax64}, {1}}),
              (std::vector<int64_t>{-kMax64 - 1}));
    EXPECT_EQ(ReduceVectors<int64_t>(Reduction::kProduct, {{kMax64, -3}, {2, int64_t{1} << 40}}),
              (std::vector<int64_t>{-2, -3 * (int64_t{1} << 40)}));
    EXPECT_EQ(ReduceVectors<int64_t>(Reduction::kMin, {{kMax64}, {-kMax64}}),
              (std::vector<int64_t>{-kMax64}));
  });
}

TEST(ReduceTest, GivesNaNForTheMinimumAndMaximumOfOne) {
  const float nan = -std::numeric_limits<float>::signaling_NaN();
  for (const Reduction op : {Reduction::kMin, Reduction::kMax}) {
    for (const std::vector<float>& got : {ReduceVectors<float>(op, {{nan}, {1}, {2}}),
                                          ReduceVectors<float>(op, {{1}, {2}, {nan}})}) {
      EXPECT_EQ(absl::bit_cast<uint32_t>(got[0]), 0x7fc00000);
    }
  }
}

TEST(ReduceTest, OrdersTheZeros) {
  EXPECT_TRUE(std::signbit(ReduceVectors<double>(Reduction::kMin, {{0.0}, {-0.0}})[0]));
  EXPECT_TRUE(std::signbit(ReduceVectors<double>(Reduction::kMin, {{-0.0}, {0.0}})[0]));
  EXPECT_FALSE(std::signbit(ReduceVectors<double>(Reduction::kMax, {{0.0}, {-0.0}})[0]));
  EXPECT_FALSE(std::signbit(ReduceVectors<double>(Reduction::kMax, {{-0.0}, {0.0}})[0]));
}

TEST(ReduceTest, OfNoElementsWritesNothing) {
  std::byte out{7};
  Reduce(DType::kF32, Reduction::kSum, {{nullptr}, {nullptr}}, 0, &out);
  EXPECT_EQ(out, std::byte{7});
}

TEST(ReduceTest, TakesWeightsThatFitFloat32) {
  EXPECT_TRUE(IsWeight(1));
  EXPECT_TRUE(IsWeight(1e-6));
  EXPECT_TRUE(IsWeight(1e12));
  EXPECT_FALSE(IsWeight(0));
  EXPECT_FALSE(IsWeight(-1));
  EXPECT_FALSE(IsWeight(1e-300));
  EXPECT_FALSE(IsWeight(1e300));
  EXPECT_FALSE(IsWeight(std::numeric_limits<double>::quiet_NaN()));
  EXPECT_FALSE(IsWeight(std::numeric_limits<double>::infinity()));
}

TEST(ReduceDeathTest, OfIntegersHasNoAverage) {
  EXPECT_DEATH(ReduceVectors<int32_t>(Reduction::kAverage, {{1}, {2}}), "average of floats");
}

}  // namespace
}  // namespace syncgrads
