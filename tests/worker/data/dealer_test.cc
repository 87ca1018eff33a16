#include "worker/data/dealer.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads {
namespace {

using ::testing::IsEmpty;

using Rows = std::vector<size_t>;

Dealer InOrder(size_t rows, uint32_t batch_size, uint64_t epochs) {
  return Dealer({.seed = 1,
                 .rows = rows,
                 .batch_size = batch_size,
                 .order = v1::DataSpec::AS_IN_SOURCE,
                 .epochs = epochs});
}

TEST(DealerTest, DealsTheNextRowsInRankOrder) {
  Dealer dealer = InOrder(7, 2, 1);
  EXPECT_EQ(dealer.RowsOf(0), (Rows{0, 1}));
  EXPECT_EQ(dealer.RowsOf(1), (Rows{2, 3}));
  const std::vector<uint32_t> both = {0, 1};
  dealer.Advance(2, both);
  EXPECT_EQ(dealer.RowsOf(0), (Rows{4, 5}));
  EXPECT_EQ(dealer.RowsOf(1), (Rows{6}));
  EXPECT_THAT(dealer.RowsOf(2), IsEmpty());
  dealer.Advance(2, both);
  EXPECT_TRUE(dealer.ended());
  EXPECT_THAT(dealer.RowsOf(0), IsEmpty());
}

TEST(DealerTest, RowsThatDidNotCountGoToTheEndOfThePass) {
  Dealer dealer = InOrder(6, 2, 1);
  dealer.Advance(2, std::vector<uint32_t>{1});  // rank 0 died with rows 0 and 1
  EXPECT_EQ(dealer.RowsOf(0), (Rows{4, 5}));
  dealer.Advance(1, std::vector<uint32_t>{0});
  EXPECT_FALSE(dealer.ended());
  EXPECT_EQ(dealer.RowsOf(0), (Rows{0, 1}));
  dealer.Advance(1, std::vector<uint32_t>{0});
  EXPECT_TRUE(dealer.ended());
}

TEST(DealerTest, AStepThatNobodyContributedToIsDealtAgain) {
  Dealer dealer = InOrder(2, 2, 1);
  dealer.Advance(1, {});
  EXPECT_EQ(dealer.RowsOf(0), (Rows{0, 1}));
}

TEST(DealerTest, EveryPassHasItsOwnOrder) {
  Dealer dealer({.seed = 1, .rows = 50, .batch_size = 50, .epochs = 2});
  const Rows first = dealer.RowsOf(0);
  dealer.Advance(1, std::vector<uint32_t>{0});
  const Rows second = dealer.RowsOf(0);
  EXPECT_NE(first, second);
  EXPECT_THAT(second, ::testing::UnorderedElementsAreArray(first));
}

TEST(DealerTest, ANewcomerGoesOnFromACopyOfItsPosition) {
  Dealer dealer({.seed = 9, .rows = 20, .batch_size = 3, .epochs = 3});
  dealer.Advance(2, std::vector<uint32_t>{1});
  Dealer newcomer({.seed = 9, .rows = 20, .batch_size = 3, .epochs = 3});
  std::copy(dealer.position().begin(), dealer.position().end(), newcomer.position().begin());
  std::copy(dealer.order().begin(), dealer.order().end(), newcomer.order().begin());
  for (int step = 0; step < 15; ++step) {
    ASSERT_EQ(newcomer.RowsOf(0), dealer.RowsOf(0));
    ASSERT_EQ(newcomer.RowsOf(2), dealer.RowsOf(2));
    dealer.Advance(3, std::vector<uint32_t>{0, 2});
    newcomer.Advance(3, std::vector<uint32_t>{0, 2});
  }
}

TEST(DealerTest, NoRowIsLostOrCountedTwiceWhoeverDies) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const size_t rows = 1 + random() % 60;
    Dealer dealer({.seed = seed, .rows = rows, .batch_size = 1 + seed % 5, .epochs = 3});
    std::map<size_t, int> counted;
    for (int step = 0; !dealer.ended(); ++step) {
      ASSERT_LT(step, 10000);
      const uint32_t world_size = 1 + random() % 4;
      std::vector<uint32_t> contributors;
      for (uint32_t rank = 0; rank < world_size; ++rank) {
        if (random() % 4 == 0) continue;
        contributors.push_back(rank);
        for (const size_t row : dealer.RowsOf(rank)) ++counted[row];
      }
      dealer.Advance(world_size, contributors);
    }
    EXPECT_EQ(counted.size(), rows);
    for (const auto& [row, times] : counted) EXPECT_EQ(times, 3) << row;
  }
}

TEST(DealerTest, WithoutRowsItHasEnded) { EXPECT_TRUE(InOrder(0, 1, 0).ended()); }

}  // namespace
}  // namespace syncgrads
