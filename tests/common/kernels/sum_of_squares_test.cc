#include "common/kernels/sum_of_squares.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/common/kernels/every_target.h"

namespace syncgrads {
namespace {

template <typename T>
const std::byte* BytesOf(const std::vector<T>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

template <typename T>
std::vector<T> Normal(size_t count) {
  std::mt19937_64 random(17);
  std::normal_distribution<double> normal(0, 3);
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(normal(random));
  return values;
}

// The order of additions that the header specifies, as a plain loop.
template <typename T>
double InEightParts(const std::vector<T>& values) {
  double parts[8] = {};
  for (size_t i = 0; i < values.size(); ++i) parts[i % 8] += double{values[i]} * double{values[i]};
  double sum = 0;
  for (const double part : parts) sum += part;
  return sum;
}

TEST(SumOfSquaresTest, IsTheWorkedExample) {
  EXPECT_EQ(SumOfSquares(DType::kF32, BytesOf(std::vector<float>{3, 4}), 2), 25);
  EXPECT_EQ(SumOfSquares(DType::kF64, BytesOf(std::vector<double>{1, -2, 2}), 3), 9);
  EXPECT_EQ(SumOfSquares(DType::kF32, nullptr, 0), 0);
}

TEST(SumOfSquaresTest, HasTheSameBitsOnEveryTarget) {
  for (const size_t count : {1, 7, 8, 9, 15, 1000, 4099}) {
    const std::vector<float> floats = Normal<float>(count);
    const std::vector<double> doubles = Normal<double>(count);
    OnEveryTarget([&] {
      EXPECT_EQ(SumOfSquares(DType::kF32, BytesOf(floats), count), InEightParts(floats));
      EXPECT_EQ(SumOfSquares(DType::kF64, BytesOf(doubles), count), InEightParts(doubles));
    });
  }
}

TEST(SumOfSquaresTest, TakesNumbersWhoseSquaresFloatsCannotHold) {
  const std::vector<float> large(100, 1e30f);
  EXPECT_NEAR(SumOfSquares(DType::kF32, BytesOf(large), 100) / 1e62, 1, 1e-6);
  const std::vector<float> small(100, 1e-30f);
  EXPECT_NEAR(SumOfSquares(DType::kF32, BytesOf(small), 100) / 1e-58, 1, 1e-6);
}

TEST(SumOfSquaresTest, IsNotFiniteIfAnElementIsNot) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values(20, 1);
    values[13] = bad;
    EXPECT_FALSE(std::isfinite(SumOfSquares(DType::kF32, BytesOf(values), 20)));
  }
}

TEST(ScaleTest, MultipliesOnEveryTarget) {
  OnEveryTarget([] {
    std::vector<float> values = Normal<float>(1003);
    std::vector<float> want = values;
    for (float& value : want) value *= 0.1f;
    Scale(DType::kF32, 0.1, reinterpret_cast<std::byte*>(values.data()), values.size());
    EXPECT_EQ(values, want);
    std::vector<double> doubles = {1, 2, 3};
    Scale(DType::kF64, 0.1, reinterpret_cast<std::byte*>(doubles.data()), 3);
    EXPECT_EQ(doubles, (std::vector<double>{1 * 0.1, 2 * 0.1, 3 * 0.1}));
  });
}

}  // namespace
}  // namespace syncgrads
