#include "common/optim/rate_schedule.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/common/expect_error.h"

namespace syncgrads {
namespace {

TEST(RateFactorTest, WithoutAScheduleTheRateIsConstant) {
  for (const uint64_t step : {0, 1, 1000000}) EXPECT_EQ(RateFactor(RateSchedule(), step, 8), 1);
}

TEST(RateFactorTest, MilestonesMultiplyTheRateWhenTheyAreReached) {
  const RateSchedule schedule = {.decay = StepDecay{{10, 20}, 0.5}};
  EXPECT_EQ(RateFactor(schedule, 9, 1), 1);
  EXPECT_EQ(RateFactor(schedule, 10, 1), 0.5);
  EXPECT_EQ(RateFactor(schedule, 19, 1), 0.5);
  EXPECT_EQ(RateFactor(schedule, 20, 1), 0.25);
}

TEST(RateFactorTest, CosinesFallToTheMinimumAndStartAgainLower) {
  const RateSchedule schedule = {.decay = CosineDecay{8, 0.2, 0.5}};
  EXPECT_DOUBLE_EQ(RateFactor(schedule, 0, 1), 1);
  EXPECT_NEAR(RateFactor(schedule, 2, 1), 0.2 + 0.8 * 0.8535533905932737, 1e-15);
  EXPECT_DOUBLE_EQ(RateFactor(schedule, 4, 1), 0.6);
  EXPECT_DOUBLE_EQ(RateFactor(schedule, 8, 1), 0.5);
  EXPECT_DOUBLE_EQ(RateFactor(schedule, 12, 1), 0.35);
  EXPECT_DOUBLE_EQ(RateFactor(schedule, 16, 1), 0.25);
  // The peaks of the cycles do not fall below the minimum.
  EXPECT_DOUBLE_EQ(RateFactor(schedule, 24, 1), 0.2);
  const RateSchedule plain = {.decay = CosineDecay{8}};
  EXPECT_DOUBLE_EQ(RateFactor(plain, 8000, 1), 1);
  EXPECT_DOUBLE_EQ(RateFactor(plain, 8004, 1), 0.5);
}

TEST(RateFactorTest, WarmUpRisesInALineAndTheDecayCountsFromItsEnd) {
  const RateSchedule schedule = {.warmup_steps = 4, .decay = StepDecay{{2}, 0.1}};
  EXPECT_EQ(RateFactor(schedule, 0, 1), 0.25);
  EXPECT_EQ(RateFactor(schedule, 3, 1), 1);
  EXPECT_EQ(RateFactor(schedule, 5, 1), 1);
  EXPECT_EQ(RateFactor(schedule, 6, 1), 0.1);
}

TEST(RateFactorTest, TheRateCanGrowWithTheNumberOfWorkers) {
  const RateSchedule schedule = {.warmup_steps = 2, .times_workers = true};
  EXPECT_EQ(RateFactor(schedule, 0, 6), 3);
  EXPECT_EQ(RateFactor(schedule, 9, 6), 6);
}

TEST(ValidateTest, ValuesOutOfTheirRangeAreNamed) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double factor : {0.0, -1.0, nan, 1e200}) {
    ExpectError(Validate(RateSchedule{.decay = StepDecay{{1, 2}, factor}}),
                absl::StatusCode::kInvalidArgument, {"factor", "2 milestones"});
  }
  const std::vector<uint64_t> most(1000, 1), too_many(1001, 1);
  EXPECT_TRUE(Validate(RateSchedule{.decay = StepDecay{most, 1}}).ok());
  ExpectError(Validate(RateSchedule{.decay = StepDecay{too_many, 1}}),
              absl::StatusCode::kInvalidArgument, {"1001 milestones", "at most 1000"});
  ExpectError(Validate(RateSchedule{.decay = CosineDecay{0}}), absl::StatusCode::kInvalidArgument,
              {"cycle_steps"});
  for (const double wrong : {-0.1, 1.1, nan}) {
    ExpectError(Validate(RateSchedule{.decay = CosineDecay{5, wrong}}),
                absl::StatusCode::kInvalidArgument, {"minimum"});
    ExpectError(Validate(RateSchedule{.decay = CosineDecay{5, 0, wrong}}),
                absl::StatusCode::kInvalidArgument, {"dampening"});
  }
  EXPECT_TRUE(Validate(RateSchedule()).ok());
  EXPECT_TRUE(Validate(RateSchedule{.decay = StepDecay{{1, 2}, 0.1}}).ok());
  EXPECT_TRUE(Validate(RateSchedule{.decay = CosineDecay{5, 1, 1}}).ok());
}

TEST(ScheduledOptimizerTest, MultipliesTheRateByTheScheduleAndTheFactor) {
  const Optimizer rule = Momentum{.learning_rate = 0.5, .momentum = 0.8};
  const RateSchedule schedule = {.decay = StepDecay{{3}, 0.5}, .times_workers = true};
  const ScheduledOptimizer optimizer(rule, {}, schedule, 0.25, 4);
  EXPECT_TRUE(optimizer.After(TensorId{7}, 2) ==
              Optimizer(Momentum{.learning_rate = 0.5, .momentum = 0.8}));
  EXPECT_TRUE(optimizer.After(TensorId{7}, 3) ==
              Optimizer(Momentum{.learning_rate = 0.25, .momentum = 0.8}));
  EXPECT_TRUE(ScheduledOptimizer(rule).After(TensorId{7}, 1000) == rule);
}

TEST(ScheduledOptimizerTest, MultipliesTheHyperparametersOfEachTensor) {
  const Optimizer rule = AdamW{.learning_rate = 0.5, .weight_decay = 0.25};
  const RateSchedule schedule = {.decay = StepDecay{{3}, 0.5}};
  const TensorFactors factors[] = {{}, {.learning_rate = 4, .weight_decay = 0}};
  const ScheduledOptimizer optimizer(rule, factors, schedule, /*factor=*/1, /*workers=*/1);
  EXPECT_TRUE(optimizer.After(TensorId{0}, 0) == rule);
  EXPECT_TRUE(optimizer.After(TensorId{1}, 3) ==
              Optimizer(AdamW{.learning_rate = 1, .weight_decay = 0}));
}

}  // namespace
}  // namespace syncgrads
