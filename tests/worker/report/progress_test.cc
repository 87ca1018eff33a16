#include "worker/report/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "common/log_level.h"

namespace syncgrads {
namespace {

class SetClock : public Clock {
 public:
  absl::Time Now() const override { return now; }
  absl::Time now = absl::UnixEpoch();
};

const TrainingPlan kPlan = {"iris", 3, 3, 120, 30, 235, 8, 250};

TEST(ProgressTest, ShowsThePlanBeforeTheFirstStep) {
  std::ostringstream out;
  const SetClock clock;
  ConsoleProgress progress(out, /*is_terminal=*/false, clock);
  progress.Started(kPlan);
  EXPECT_EQ(out.str(),
            "iris: 120 rows in 3 shards, 30 held out; 3 workers, batches of 8; 235 parameters; "
            "250 steps\n");
}

TEST(ProgressTest, ElsewhereThanOnATerminalThereIsAtMostOnePlainLineASecond) {
  std::ostringstream out;
  SetClock clock;
  ConsoleProgress progress(out, /*is_terminal=*/false, clock);
  progress.Started(kPlan);
  for (uint64_t step = 1; step <= 250; ++step) {
    clock.now += absl::Milliseconds(10);
    progress.Used({8, {.read = absl::Milliseconds(2), .wait = absl::Milliseconds(5)}, 0.01});
    progress.Stepped(step, step <= 101 ? 1.0 : 2.0);
  }
  progress.Finished();
  const std::string kRest = "  800 rows/s  rate 0.01  reads 20 %  waits 50 %\n";
  EXPECT_THAT(out.str(),
              testing::EndsWith("250 steps\n"
                                "step 1/250  loss 1.000000  100.0 steps/s" +
                                kRest + "step 101/250  loss 1.000000  100.0 steps/s" + kRest +
                                "step 201/250  loss 2.000000  100.0 steps/s" + kRest +
                                "step 250/250  loss 2.000000  100.0 steps/s" + kRest));
}

TEST(ProgressTest, AtLevelDebugThereAreAboutTwentyPlainLines) {
  std::ostringstream out;
  SetClock clock;
  ConsoleProgress progress(out, /*is_terminal=*/false, clock, /*every=*/0, LogLevel::kDebug);
  progress.Started(kPlan);
  for (uint64_t step = 1; step <= 250; ++step) {
    clock.now += absl::Milliseconds(100);
    progress.Stepped(step, step % 2 == 0 ? 1.0 : 2.0);
  }
  progress.Finished();
  const std::string text = out.str();
  EXPECT_THAT(text, testing::HasSubstr(
                        "loss: the mean over this worker's own batches since the previous value "
                        "shown\nstep 12/250  loss 1.500000  10.0 steps/s  "));
  EXPECT_THAT(text, testing::HasSubstr("step 250/250"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("\r")));
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 24);
}

TEST(ProgressTest, TheLossOfAllWorkersIsShownWhereItIsAveraged) {
  std::ostringstream out;
  SetClock clock;
  ConsoleProgress progress(out, /*is_terminal=*/false, clock, /*every=*/2);
  TrainingPlan plan = kPlan;
  plan.steps = 6;
  plan.averages_losses = true;
  progress.Started(plan);
  for (uint64_t step = 1; step <= 6; ++step) {
    clock.now += absl::Milliseconds(100);
    progress.Used({8, {}, 0.5});
    if (step == 2) progress.Averaged({2, 0.25, 240});
    if (step == 6) progress.Averaged({6, 0.125, 480});
    progress.Stepped(step, 7.0);
  }
  progress.Finished();
  EXPECT_THAT(
      out.str(),
      testing::EndsWith(
          "step 2/6  loss 0.250000  10.0 steps/s  240 rows/s  rate 0.5  reads 0 %  waits 0 %\n"
          "step 4/6  loss 0.250000  10.0 steps/s  240 rows/s  rate 0.5  reads 0 %  waits 0 %\n"
          "step 6/6  loss 0.125000  10.0 steps/s  480 rows/s  rate 0.5  reads 0 %  waits 0 %\n"));
}

TEST(ProgressTest, LinesComeAfterAsManyStepsAsAreAskedFor) {
  std::ostringstream out;
  const SetClock clock;
  ConsoleProgress progress(out, /*is_terminal=*/false, clock, /*every=*/100);
  progress.Started(kPlan);
  for (uint64_t step = 1; step <= 250; ++step) progress.Stepped(step, 1.0);
  const std::string text = out.str();
  EXPECT_THAT(text, testing::HasSubstr("step 100/250"));
  EXPECT_THAT(text, testing::HasSubstr("step 200/250"));
  EXPECT_THAT(text, testing::HasSubstr("step 250/250"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1 + 3);
}

TEST(ProgressTest, OnATerminalThereIsABarThatIsDrawnAtMostTenTimesASecond) {
  std::ostringstream out;
  SetClock clock;
  ConsoleProgress progress(out, /*is_terminal=*/true, clock);
  progress.Started(kPlan);
  for (uint64_t step = 1; step <= 250; ++step) {
    clock.now += absl::Milliseconds(10);
    progress.Stepped(step, std::nullopt);
  }
  progress.Finished();
  const std::string text = out.str();
  EXPECT_LE(std::count(text.begin(), text.end(), '\r'), 27);
  EXPECT_THAT(text, testing::HasSubstr("[====================] step 250/250  loss -"));
  EXPECT_EQ(text.back(), '\n');
}

}  // namespace
}  // namespace syncgrads
