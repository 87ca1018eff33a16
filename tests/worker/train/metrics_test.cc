#include "worker/train/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace syncgrads {
namespace {

TEST(CountTopKTest, GivesTheWorkedNumbers) {
  const Matrix<double> scores{{.1, .7, .2}, {.5, .3, .2}, {.2, .3, .5}, {.6, .3, .1}};
  const std::vector<double> labels = {1, 1, 0, 0};  // counted from 1: 2, 2, 1, 1
  EXPECT_EQ(CountTopK(scores, labels, 1), 2u);      // accuracy 0.5
  EXPECT_EQ(CountTopK(scores, labels, 2), 3u);      // accuracy 0.75
  EXPECT_EQ(CountTopK(scores, labels, 3), 4u);      // accuracy 1
}

TEST(CountTopKTest, OfEqualScoresTheLowerColumnIsTheHigher) {
  const Matrix<float> scores{{1, 1}, {1, 1}};
  const std::vector<double> labels = {0, 1};
  EXPECT_EQ(CountTopK(scores, labels, 1), 1u);
}

TEST(CountTopKTest, ANaNIsLowerThanAnyNumber) {
  const Matrix<float> scores{{NAN, -1}, {-1, NAN}, {NAN, NAN}};
  EXPECT_EQ(CountTopK(scores, std::vector<double>{1, 0, 1}, 1), 2u);
}

TEST(AreaUnderCurveTest, IsTheShareOfPairsInTheRightOrder) {
  EXPECT_EQ(AreaUnderCurve({{0.1, false}, {0.4, false}, {0.35, true}, {0.8, true}}), 0.75);
  EXPECT_EQ(AreaUnderCurve({{1, false}, {2, true}}), 1);
  EXPECT_EQ(AreaUnderCurve({{2, false}, {1, true}}), 0);
}

TEST(AreaUnderCurveTest, EqualScoresCountAsOneHalf) {
  EXPECT_EQ(AreaUnderCurve({{1, false}, {1, true}}), 0.5);
  EXPECT_EQ(AreaUnderCurve({{1, false}, {1, true}, {1, true}, {0, false}}), 0.75);
}

TEST(AreaUnderCurveTest, NeedsRowsOfBothClassesAndNumbers) {
  EXPECT_EQ(AreaUnderCurve({}), std::nullopt);
  EXPECT_EQ(AreaUnderCurve({{1, true}}), std::nullopt);
  EXPECT_EQ(AreaUnderCurve({{1, true}, {NAN, false}}), std::nullopt);
}

}  // namespace
}  // namespace syncgrads
