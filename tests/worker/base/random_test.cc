#include "worker/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace syncgrads {
namespace {

// These numbers must never change: they determine the initial parameters and the order of the data
// of every job.
TEST(RandomStreamTest, GivesTheSameNumbersOnEveryMachine) {
  RandomStream random(1, {2, 3});
  EXPECT_EQ(random.Next(), 16813141339985985492u);
  EXPECT_EQ(random.Next(), 16445571069277951720u);
}

TEST(RandomStreamTest, StreamsOfDifferentNamesDiffer) {
  EXPECT_NE(RandomStream(1, {2, 3}).Next(), RandomStream(1, {3, 2}).Next());
  EXPECT_NE(RandomStream(1, {2}).Next(), RandomStream(2, {1}).Next());
  EXPECT_NE(RandomStream(1, {0}).Next(), RandomStream(1, {}).Next());
}

TEST(RandomStreamTest, UniformNumbersAreFromZeroToBelowOneWithTheRightMean) {
  RandomStream random(7, {});
  double sum = 0;
  for (int i = 0; i < 100000; ++i) {
    const double value = random.NextUniform();
    ASSERT_GE(value, 0);
    ASSERT_LT(value, 1);
    sum += value;
  }
  EXPECT_NEAR(sum / 100000, 0.5, 0.005);
}

TEST(RandomStreamTest, EveryNumberBelowTheBoundIsDrawnEquallyOften) {
  RandomStream random(7, {});
  std::vector<int> counts(6, 0);
  for (int i = 0; i < 60000; ++i) ++counts[random.NextBelow(6)];
  for (const int count : counts) EXPECT_NEAR(count, 10000, 400);
}

TEST(RandomStreamTest, ShufflingKeepsEveryElement) {
  std::vector<int> values(100);
  std::iota(values.begin(), values.end(), 0);
  std::vector<int> shuffled = values;
  RandomStream(7, {}).Shuffle(shuffled);
  EXPECT_NE(shuffled, values);
  std::sort(shuffled.begin(), shuffled.end());
  EXPECT_EQ(shuffled, values);
}

}  // namespace
}  // namespace syncgrads
