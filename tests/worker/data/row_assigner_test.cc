#include "worker/data/row_assigner.h"

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

RowAssigner InOrder(size_t rows, uint32_t batch_size, uint64_t epochs) {
  return RowAssigner({.seed = 1,
                      .rows = rows,
                      .batch_size = batch_size,
                      .order = v1::DataSpec::AS_IN_SOURCE,
                      .epochs = epochs});
}

TEST(RowAssignerTest, AssignsTheNextRowsInRankOrder) {
  RowAssigner assigner = InOrder(7, 2, 1);
  EXPECT_EQ(assigner.RowsOf(0), (Rows{0, 1}));
  EXPECT_EQ(assigner.RowsOf(1), (Rows{2, 3}));
  const std::vector<uint32_t> both = {0, 1};
  assigner.Advance(2, both);
  EXPECT_EQ(assigner.RowsOf(0), (Rows{4, 5}));
  EXPECT_EQ(assigner.RowsOf(1), (Rows{6}));
  EXPECT_THAT(assigner.RowsOf(2), IsEmpty());
  assigner.Advance(2, both);
  EXPECT_TRUE(assigner.ended());
  EXPECT_THAT(assigner.RowsOf(0), IsEmpty());
}

TEST(RowAssignerTest, RowsThatDidNotCountGoToTheEndOfThePass) {
  RowAssigner assigner = InOrder(6, 2, 1);
  assigner.Advance(2, std::vector<uint32_t>{1});  // rank 0 died with rows 0 and 1
  EXPECT_EQ(assigner.RowsOf(0), (Rows{4, 5}));
  assigner.Advance(1, std::vector<uint32_t>{0});
  EXPECT_FALSE(assigner.ended());
  EXPECT_EQ(assigner.RowsOf(0), (Rows{0, 1}));
  assigner.Advance(1, std::vector<uint32_t>{0});
  EXPECT_TRUE(assigner.ended());
}

TEST(RowAssignerTest, TheRowsOfAStepThatNobodyContributedToAreAssignedAgain) {
  RowAssigner assigner = InOrder(2, 2, 1);
  assigner.Advance(1, {});
  EXPECT_EQ(assigner.RowsOf(0), (Rows{0, 1}));
}

TEST(RowAssignerTest, EveryPassHasItsOwnOrder) {
  RowAssigner assigner({.seed = 1, .rows = 50, .batch_size = 50, .epochs = 2});
  const Rows first = assigner.RowsOf(0);
  assigner.Advance(1, std::vector<uint32_t>{0});
  const Rows second = assigner.RowsOf(0);
  EXPECT_NE(first, second);
  EXPECT_THAT(second, ::testing::UnorderedElementsAreArray(first));
}

TEST(RowAssignerTest, ANewcomerGoesOnFromACopyOfItsPosition) {
  RowAssigner assigner({.seed = 9, .rows = 20, .batch_size = 3, .epochs = 3});
  assigner.Advance(2, std::vector<uint32_t>{1});
  RowAssigner newcomer({.seed = 9, .rows = 20, .batch_size = 3, .epochs = 3});
  std::copy(assigner.position().begin(), assigner.position().end(), newcomer.position().begin());
  std::copy(assigner.order().begin(), assigner.order().end(), newcomer.order().begin());
  for (int step = 0; step < 15; ++step) {
    ASSERT_EQ(newcomer.RowsOf(0), assigner.RowsOf(0));
    ASSERT_EQ(newcomer.RowsOf(2), assigner.RowsOf(2));
    assigner.Advance(3, std::vector<uint32_t>{0, 2});
    newcomer.Advance(3, std::vector<uint32_t>{0, 2});
  }
}

TEST(RowAssignerTest, NoRowIsLostOrCountedTwiceWhoeverDies) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const size_t rows = 1 + random() % 60;
    RowAssigner assigner({.seed = seed, .rows = rows, .batch_size = 1 + seed % 5, .epochs = 3});
    std::map<size_t, int> counted;
    for (int step = 0; !assigner.ended(); ++step) {
      ASSERT_LT(step, 10000);
      const uint32_t world_size = 1 + random() % 4;
      std::vector<uint32_t> contributors;
      for (uint32_t rank = 0; rank < world_size; ++rank) {
        if (random() % 4 == 0) continue;
        contributors.push_back(rank);
        for (const size_t row : assigner.RowsOf(rank)) ++counted[row];
      }
      assigner.Advance(world_size, contributors);
    }
    EXPECT_EQ(counted.size(), rows);
    for (const auto& [row, times] : counted) EXPECT_EQ(times, 3) << row;
  }
}

TEST(RowAssignerTest, WithoutRowsItHasEnded) { EXPECT_TRUE(InOrder(0, 1, 0).ended()); }

}  // namespace
}  // namespace syncgrads
