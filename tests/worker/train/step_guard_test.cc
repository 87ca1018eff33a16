#include "worker/train/step_guard.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/testing/status.h"

namespace syncgrads {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class StepGuardTest : public testing::Test {
 protected:
  StepGuard::Options Watching(OnBad outliers) {
    StepGuard::Options options;
    options.outlier_factor = 10;
    options.outliers = outliers;
    options.history = 16;
    options.max_in_a_row = 3;
    options.warn = [this](const std::string& line) { warnings_.push_back(line); };
    return options;
  }

  // Runs steps with gradients of these norms. The guard must admit all of them.
  void Make(StepGuard& guard, const std::vector<double>& norms) {
    for (const double norm : norms) {
      guard.Begin(++step_);
      const auto admitted = guard.Admit(norm);
      SYNCGRADS_ASSERT_OK(admitted);
      EXPECT_TRUE(*admitted) << norm;
      SYNCGRADS_EXPECT_OK(guard.Finish());
    }
  }

  uint64_t step_ = 0;
  std::vector<std::string> warnings_;
};

TEST_F(StepGuardTest, AnOutlierIsMeasuredByTheMedianOfThoseBefore) {
  StepGuard guard(Watching(OnBad::kReject));
  Make(guard, {1, 5, 2, 4, 3, 3, 3, 3, 30});
  guard.Begin(10);
  ExpectError(guard.Admit(30.5), kInvalid,
              {"step 10", "30.5", "10.1", "median of the previous 9", "outlier_factor is 10"});
}

TEST_F(StepGuardTest, WhatIsUsualMayChangeSlowly) {
  StepGuard guard(Watching(OnBad::kReject));
  std::vector<double> norms;
  for (double norm = 1; norm < 1e6; norm *= 1.2) norms.push_back(norm);
  Make(guard, norms);
}

TEST_F(StepGuardTest, FewNormsSayNothing) {
  StepGuard guard(Watching(OnBad::kReject));
  Make(guard, {1e-3, 1, 1e3, 1e6, 1, 1, 1});
}

TEST_F(StepGuardTest, SkipsAreCountedToldAndNotRemembered) {
  StepGuard guard(Watching(OnBad::kSkip));
  Make(guard, {1, 1, 1, 1, 1, 1, 1, 1});
  for (int i = 0; i < 3; ++i) {
    guard.Begin(++step_);
    const auto admitted = guard.Admit(100);
    SYNCGRADS_ASSERT_OK(admitted);
    EXPECT_FALSE(*admitted);
    SYNCGRADS_EXPECT_OK(guard.Finish());
    Make(guard, {1});
  }
  EXPECT_EQ(guard.skipped().outliers, 3u);
  EXPECT_EQ(ToString(guard.skipped()), "3 steps: 3 too large");
  ASSERT_THAT(warnings_, SizeIs(3));
  EXPECT_THAT(warnings_[0], AllOf(HasSubstr("step 9 is skipped"), HasSubstr("100 times")));
}

TEST_F(StepGuardTest, AStepThatIsBegunAgainCountsOnce) {
  StepGuard guard(Watching(OnBad::kSkip));
  Make(guard, {1, 1, 1, 1, 1, 1, 1, 1});
  guard.Begin(9);
  EXPECT_FALSE(*guard.Admit(100));
  guard.Begin(9);
  EXPECT_TRUE(*guard.Admit(1));
  SYNCGRADS_EXPECT_OK(guard.Finish());
  EXPECT_EQ(guard.skipped().total(), 0u);
}

TEST_F(StepGuardTest, ANormThatIsNotFiniteIsUpToTheOtherPolicy) {
  StepGuard::Options options = Watching(OnBad::kAllow);
  StepGuard rejecting(options);
  rejecting.Begin(1);
  ExpectError(rejecting.Admit(kNaN), kInvalid, {"step 1", "nan"});
  options.non_finite = OnBad::kSkip;
  StepGuard skipping(options);
  skipping.Begin(1);
  EXPECT_FALSE(*skipping.Admit(kNaN));
  SYNCGRADS_EXPECT_OK(skipping.Finish());
  EXPECT_EQ(skipping.skipped().non_finite, 1u);
  options.non_finite = OnBad::kAllow;
  StepGuard allowing(options);
  allowing.Begin(1);
  EXPECT_TRUE(*allowing.Admit(kNaN));
  SYNCGRADS_EXPECT_OK(allowing.Finish());
  EXPECT_EQ(allowing.skipped().total(), 0u);
}

TEST_F(StepGuardTest, TooManyInARowAreAnError) {
  StepGuard guard(Watching(OnBad::kSkip));
  for (int i = 0; i < 3; ++i) {
    guard.Begin(++step_);
    guard.NoteOutOfMemory("for its gradient");
    SYNCGRADS_EXPECT_OK(guard.Finish());
  }
  guard.Begin(++step_);
  guard.NoteOutOfMemory("for its gradient");
  ExpectError(guard.Finish(), absl::StatusCode::kResourceExhausted,
              {"4 steps in a row", "step 4", "max_skips_in_a_row is 3", "out of memory"});

  StepGuard others(Watching(OnBad::kSkip));
  for (int i = 0; i < 8; ++i) {
    others.Begin(1);
    if (i % 4 != 3) others.NoteLeftOut("dense1/kernel", 3);
    SYNCGRADS_EXPECT_OK(others.Finish());
  }
  EXPECT_EQ(others.skipped().non_finite, 6u);
}

TEST_F(StepGuardTest, TheFirstTenAreTold) {
  StepGuard::Options options = Watching(OnBad::kSkip);
  options.max_in_a_row = 100;
  StepGuard guard(options);
  for (int i = 0; i < 50; ++i) {
    guard.Begin(++step_);
    guard.NoteLeftOut("w", 1);
    SYNCGRADS_EXPECT_OK(guard.Finish());
  }
  ASSERT_THAT(warnings_, SizeIs(10));
  EXPECT_THAT(warnings_[9], HasSubstr("further skips are only counted"));
  EXPECT_EQ(guard.skipped().total(), 50u);
}

}  // namespace
}  // namespace syncgrads
