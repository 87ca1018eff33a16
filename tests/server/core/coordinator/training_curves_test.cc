// Tests the curves that the coordinator keeps of a job's training.

#include "server/core/coordinator/training_curves.h"

#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const absl::Time kBegin = absl::UnixEpoch() + absl::Hours(1);

TrainingFigures At(uint64_t step, std::optional<double> loss) {
  return {.step = step, .loss = loss};
}

TrainingFigures Validated(uint64_t step, double loss) {
  return {.step = step, .validation = Validation{step, {{"loss", loss}}}};
}

TEST(CurveTest, KeepsEveryPointUntilThereAreTooMany) {
  Curve<int> curve;
  for (int i = 0; i < 512; ++i) curve.Add(i);
  ASSERT_THAT(curve.points(), SizeIs(512));
  for (int i = 0; i < 512; ++i) EXPECT_EQ(curve.points()[i], i);
}

TEST(CurveTest, HalvesItsPointsAndDoublesTheirDistance) {
  Curve<int> curve;
  for (int i = 0; i < 100000; ++i) {
    curve.Add(i);
    ASSERT_LE(curve.points().size(), 512u);
  }
  // 100,000 points at a distance of 256.
  ASSERT_THAT(curve.points(), SizeIs(391));
  for (int i = 0; i < 391; ++i) EXPECT_EQ(curve.points()[i], 256 * i);
}

TEST(TrainingCurvesTest, ALossIsTheMeanOfTheMembersThatHaveOne) {
  TrainingCurves curves;
  curves.Sample({At(3, 1.0), At(5, std::nullopt), At(4, 2.0)}, 0, kBegin);
  ASSERT_THAT(curves.training(), SizeIs(1));
  EXPECT_EQ(curves.training()[0].at, kBegin);
  EXPECT_EQ(curves.training()[0].step, 5u);
  EXPECT_EQ(curves.training()[0].loss, 1.5);
}

TEST(TrainingCurvesTest, ThereIsOnePointASecondWhileStepsAreMade) {
  TrainingCurves curves;
  EXPECT_TRUE(curves.IsDue(kBegin));
  curves.Sample({At(1, 1.0)}, 0, kBegin);
  EXPECT_FALSE(curves.IsDue(kBegin + absl::Milliseconds(999)));
  EXPECT_TRUE(curves.IsDue(kBegin + absl::Seconds(1)));
  curves.Sample({At(1, 1.0)}, 0, kBegin + absl::Seconds(1));
  EXPECT_THAT(curves.training(), SizeIs(1));
  curves.Sample({At(2, 0.5)}, 0, kBegin + absl::Seconds(2));
  EXPECT_THAT(curves.training(), SizeIs(2));
}

TEST(TrainingCurvesTest, WithoutALossThereIsNoPoint) {
  TrainingCurves curves;
  curves.Sample({}, 0, kBegin);
  curves.Sample({At(1, std::nullopt)}, 0, kBegin + absl::Seconds(1));
  EXPECT_THAT(curves.training(), IsEmpty());
  EXPECT_THAT(curves.validation(), IsEmpty());
}

TEST(TrainingCurvesTest, EachPointHasTheStepsPerSecond) {
  TrainingCurves curves;
  curves.Sample({At(1, 1.0)}, 2.5, kBegin);
  curves.Sample({At(4, 0.5)}, 3, kBegin + absl::Seconds(1));
  ASSERT_THAT(curves.training(), SizeIs(2));
  EXPECT_EQ(curves.training()[0].steps_per_second, 2.5);
  EXPECT_EQ(curves.training()[1].steps_per_second, 3);
}

TEST(TrainingCurvesTest, StepsOfWorkersThatReportNoLossHavePointsToo) {
  TrainingCurves curves;
  curves.Sample({}, 2.5, kBegin);
  ASSERT_THAT(curves.training(), SizeIs(1));
  EXPECT_EQ(curves.training()[0].steps_per_second, 2.5);
  EXPECT_TRUE(std::isnan(curves.training()[0].loss));
}

TEST(TrainingCurvesTest, TheEndOfTheStepsHasOnePoint) {
  TrainingCurves curves;
  curves.Sample({At(1, 1.0)}, 2.5, kBegin);
  for (int second = 1; second <= 5; ++second) {
    curves.Sample({At(1, 1.0)}, 0, kBegin + absl::Seconds(second));
  }
  ASSERT_THAT(curves.training(), SizeIs(2));
  EXPECT_EQ(curves.training()[1].at, kBegin + absl::Seconds(1));
  EXPECT_EQ(curves.training()[1].steps_per_second, 0);
  EXPECT_EQ(curves.training()[1].loss, 1.0);
}

TEST(TrainingCurvesTest, LargeLossesHaveAMean) {
  TrainingCurves curves;
  curves.Sample({At(1, 1.5e308), At(1, 1.5e308), At(1, 1.5e308)}, 0, kBegin);
  ASSERT_THAT(curves.training(), SizeIs(1));
  EXPECT_EQ(curves.training()[0].loss, 1.5e308);
}

TEST(TrainingCurvesTest, EachValidationIsOnePointOfTheFirstMemberThatHasIt) {
  TrainingCurves curves;
  curves.Sample({At(9, 1.0), Validated(8, 0.25), Validated(8, 0.75), Validated(4, 9.0)}, 0, kBegin);
  curves.Sample({Validated(8, 0.5)}, 0, kBegin + absl::Seconds(1));
  curves.Sample({Validated(8, 0.5), Validated(16, 0.125)}, 0, kBegin + absl::Seconds(2));
  ASSERT_THAT(curves.validation(), SizeIs(2));
  EXPECT_EQ(curves.validation()[0].at, kBegin);
  EXPECT_EQ(curves.validation()[0].validation->step, 8u);
  EXPECT_THAT(curves.validation()[0].validation->scores, ElementsAre(Score{"loss", 0.25}));
  EXPECT_EQ(curves.validation()[1].at, kBegin + absl::Seconds(2));
  EXPECT_THAT(curves.validation()[1].validation->scores, ElementsAre(Score{"loss", 0.125}));
}

}  // namespace
}  // namespace syncgrads::server
