#include "worker/train/schedule.h"

#include <gtest/gtest.h>

#include "google/protobuf/text_format.h"

namespace syncgrads {
namespace {

v1::Schedule Parse(const std::string& text) {
  v1::Schedule schedule;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &schedule)) << text;
  return schedule;
}

TEST(ScheduleTest, WithoutAnyTheRateStaysAsItIs) {
  for (const uint64_t step : {0, 1, 1000000}) EXPECT_EQ(RateFactor(v1::Schedule(), step, 8), 1);
}

TEST(ScheduleTest, StepsMultiplyTheRateWhenTheyAreReached) {
  const v1::Schedule schedule = Parse("step { milestones: 10 milestones: 20 factor: 0.5 }");
  EXPECT_EQ(RateFactor(schedule, 9, 1), 1);
  EXPECT_EQ(RateFactor(schedule, 10, 1), 0.5);
  EXPECT_EQ(RateFactor(schedule, 19, 1), 0.5);
  EXPECT_EQ(RateFactor(schedule, 20, 1), 0.25);
}

TEST(ScheduleTest, CosinesFallToTheMinimumAndStartAgainLower) {
  const v1::Schedule schedule = Parse("cosine { cycle_steps: 8 minimum: 0.2 dampening: 0.5 }");
  EXPECT_DOUBLE_EQ(RateFactor(schedule, 0, 1), 1);
  EXPECT_NEAR(RateFactor(schedule, 2, 1), 0.2 + 0.8 * 0.8535533905932737, 1e-15);
  EXPECT_DOUBLE_EQ(RateFactor(schedule, 4, 1), 0.6);
  EXPECT_DOUBLE_EQ(RateFactor(schedule, 8, 1), 0.5);
  EXPECT_DOUBLE_EQ(RateFactor(schedule, 12, 1), 0.35);
  EXPECT_DOUBLE_EQ(RateFactor(schedule, 16, 1), 0.25);
  // The peaks of the cycles do not fall below the minimum.
  EXPECT_DOUBLE_EQ(RateFactor(schedule, 24, 1), 0.2);
  const v1::Schedule plain = Parse("cosine { cycle_steps: 8 }");
  EXPECT_DOUBLE_EQ(RateFactor(plain, 8000, 1), 1);
  EXPECT_DOUBLE_EQ(RateFactor(plain, 8004, 1), 0.5);
}

TEST(ScheduleTest, WarmUpRisesInALineAndTheRestCountsFromItsEnd) {
  const v1::Schedule schedule = Parse("warmup_steps: 4 step { milestones: 2 factor: 0.1 }");
  EXPECT_EQ(RateFactor(schedule, 0, 1), 0.25);
  EXPECT_EQ(RateFactor(schedule, 3, 1), 1);
  EXPECT_EQ(RateFactor(schedule, 5, 1), 1);
  EXPECT_EQ(RateFactor(schedule, 6, 1), 0.1);
}

TEST(ScheduleTest, TheRateCanGrowWithTheNumberOfWorkers) {
  const v1::Schedule schedule = Parse("warmup_steps: 2 times_workers: true");
  EXPECT_EQ(RateFactor(schedule, 0, 6), 3);
  EXPECT_EQ(RateFactor(schedule, 9, 6), 6);
}

}  // namespace
}  // namespace syncgrads
