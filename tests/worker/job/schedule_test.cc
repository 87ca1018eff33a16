#include "worker/job/schedule.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>

namespace syncgrads {
namespace {

v1::LearningRateSchedule Parse(const std::string& text) {
  v1::LearningRateSchedule schedule;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &schedule));
  return schedule;
}

TEST(ScheduleTest, StepsStayAsTheyAre) {
  const v1::LearningRateSchedule steps =
      Parse("warmup_steps: 7 times_workers: true step { milestones: 3 milestones: 9 factor: 0.1 }");
  EXPECT_FALSE(CountsEpochs(steps));
  EXPECT_TRUE(ScheduleOf(steps, 100) == (RateSchedule{7, StepDecay{{3, 9}, 0.1}, true}));
  EXPECT_TRUE(ScheduleOf(Parse("cosine { cycle_steps: 50 minimum: 0.1 }"), 100) ==
              (RateSchedule{0, CosineDecay{50, 0.1, 1}, false}));
  EXPECT_TRUE(ScheduleOf(Parse(""), 100) == RateSchedule());
}

TEST(ScheduleTest, EpochsBecomeWholeSteps) {
  const v1::LearningRateSchedule step =
      Parse("warmup_epochs: 0.25 step { milestone_epochs: 30 milestone_epochs: 60.5 factor: 0.1 }");
  EXPECT_TRUE(CountsEpochs(step));
  EXPECT_TRUE(ScheduleOf(step, 10) == (RateSchedule{3, StepDecay{{300, 605}, 0.1}, false}));
  const v1::LearningRateSchedule cosine =
      Parse("cosine { cycle_epochs: 85 minimum: 0.1 dampening: 0.5 }");
  EXPECT_TRUE(CountsEpochs(cosine));
  EXPECT_TRUE(ScheduleOf(cosine, 7) == (RateSchedule{0, CosineDecay{595, 0.1, 0.5}, false}));
  // A part of an epoch is at least a step.
  EXPECT_EQ(ScheduleOf(Parse("warmup_epochs: 0.001"), 10).warmup_steps, 1u);
}

}  // namespace
}  // namespace syncgrads
