// Tests the reports of a trainer about each step: what it used, and the mean loss of all workers.

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/testing/fake_team.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/report/team_loss.h"
#include "worker/run/operations.h"

namespace syncgrads {
namespace {

class RecordingProgress : public NoProgress {
 public:
  void Started(const TrainingPlan& plan) override { this->plan = plan; }
  void Used(const StepUse& use) override { used.push_back(use); }
  void Averaged(const TeamAverage& average) override {
    averages.push_back(average);
    average_came_after.push_back(losses.size());
  }
  void Stepped(uint64_t, std::optional<double> loss) override {
    ++steps;
    losses.push_back(loss);
  }

  TrainingPlan plan;
  std::vector<StepUse> used;
  size_t steps = 0;
  std::vector<std::optional<double>> losses;
  std::vector<TeamAverage> averages;
  // For each average, the number of calls of Stepped before it.
  std::vector<size_t> average_came_after;
};

class SetClock : public Clock {
 public:
  absl::Time Now() const override { return now; }
  absl::Time now = absl::UnixEpoch();
};

class StepUseTest : public testing::Test {
 protected:
  // Trains with one worker on 20 rows, in batches of 5, for two passes. `more` is the rest of the
  // job file.
  RecordingProgress Train(const std::string& more) { return TrainTogether(1, more).front(); }

  // The same with several workers, in batches of at most 5.
  std::vector<RecordingProgress> TrainTogether(uint32_t world_size, const std::string& more) {
    std::string rows = "x,y\n";
    for (int i = 0; i < 20; ++i) absl::StrAppend(&rows, i, ",", i % 2 == 0 ? "a" : "b", "\n");
    directory_.Write("rows.csv", rows);
    const auto job = ParseJobFile(absl::StrCat(R"(
        name: "used" batch_size: 5 epochs: 2
        data { table { path: "rows.csv" } target: "y" }
        model { layers { dense { outputs: 2 } } }
        loss { logit_cross_entropy {} }
        optimizer { sgd { learning_rate: 0.5 } } )",
                                               more),
                                  directory_.path() + "/used.job");
    SYNCGRADS_EXPECT_OK(job);
    std::vector<RecordingProgress> progress(world_size);
    FakeJob workers(world_size);
    workers.Run([&](Team& team) {
      TrainerOptions options;
      options.progress = &progress[team.rank()];
      SYNCGRADS_EXPECT_OK(RunTraining(*job, team, options, ""));
    });
    return progress;
  }

  TemporaryDirectory directory_;
};

TEST_F(StepUseTest, EachStepHasItsRowsAndItsLearningRate) {
  const RecordingProgress progress = Train("schedule { step { milestones: 4 factor: 0.5 } }");
  EXPECT_EQ(progress.steps, 8u);
  ASSERT_EQ(progress.used.size(), 8u);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(progress.used[i].rows, 5u);
    EXPECT_EQ(progress.used[i].learning_rate, i < 4 ? 0.5 : 0.25) << "step " << i + 1;
    const StepTimes& times = progress.used[i].times;
    for (const absl::Duration phase : {times.compute, times.push, times.wait, times.apply}) {
      EXPECT_GT(phase, absl::ZeroDuration()) << "step " << i + 1;
    }
  }
}

TEST_F(StepUseTest, LocalStepsHaveTheirRowsToo) {
  const RecordingProgress progress =
      Train("consistency { local_steps { steps: 4 } } optimizer_placement: WORKERS");
  ASSERT_EQ(progress.used.size(), 8u);
  uint64_t rows = 0;
  for (const StepUse& use : progress.used) rows += use.rows;
  EXPECT_EQ(rows, 40u);
}

// The workers have 7, 7 and 6 rows, so that their second batches have two rows, two rows and one.
TEST_F(StepUseTest, LossesAreAveragedOverTheRowsOfAllWorkers) {
  const std::vector<RecordingProgress> all = TrainTogether(3, "");
  const std::vector<TeamAverage>& averages = all[0].averages;
  ASSERT_GE(averages.size(), 2u);
  uint64_t after = 0;
  for (size_t i = 0; i < averages.size(); ++i) {
    EXPECT_EQ(averages[i].step, all[1].averages[i].step);
    EXPECT_EQ(averages[i].loss, all[1].averages[i].loss);
    double losses = 0, rows = 0;
    for (const RecordingProgress& one : all) {
      for (uint64_t step = after; step < averages[i].step; ++step) {
        if (!one.losses[step].has_value()) continue;
        const auto weight = static_cast<double>(one.used[step].rows);
        losses += *one.losses[step] * weight;
        rows += weight;
      }
    }
    after = averages[i].step;
    ASSERT_TRUE(averages[i].loss.has_value());
    EXPECT_NEAR(*averages[i].loss, losses / rows, 1e-12) << "after step " << after;
  }
  EXPECT_EQ(averages.front().step, 1u);
  EXPECT_EQ(all[0].average_came_after.front(), 0u) << "before the first step is reported";
  EXPECT_EQ(averages.back().step, all[0].steps);
  EXPECT_EQ(all[0].average_came_after.back() + 1, all[0].steps);
}

TEST_F(StepUseTest, LossesAreNotAveragedWhereWorkersDoNotMakeTheSameSteps) {
  const RecordingProgress local =
      Train("consistency { local_steps { steps: 4 } } optimizer_placement: WORKERS");
  EXPECT_FALSE(local.plan.averages_losses);
  EXPECT_TRUE(local.averages.empty());
  EXPECT_TRUE(Train("").plan.averages_losses);
}

TEST(TeamLossTest, TheIntervalOfAllWorkersGrowsAndShrinksWithTheirMeanTime) {
  FakeJob workers(2);
  std::vector<RecordingProgress> progress(2);
  workers.Run([&](Team& team) {
    SetClock clock;
    TeamLoss losses(team, progress[team.rank()], clock);
    for (uint64_t step = 1; step <= 66; ++step) {
      // The mean of the two is 100 ms, and from step 20 on 3 s.
      clock.now +=
          (step < 20 ? absl::Milliseconds(100) : absl::Seconds(3)) * (team.rank() == 0 ? 0.5 : 1.5);
      SYNCGRADS_EXPECT_OK(losses.Stepped(step, 10, 1.0, /*is_last=*/step == 66));
    }
  });
  std::vector<uint64_t> steps;
  for (const TeamAverage& average : progress[0].averages) steps.push_back(average.step);
  // An interval is known when the sums of the one before it have arrived.
  EXPECT_EQ(steps, (std::vector<uint64_t>{1, 2, 4, 8, 16, 32, 48, 56, 60, 62, 63, 64, 65, 66}));
  EXPECT_DOUBLE_EQ(progress[0].averages[3].rows_per_s, 200);
  EXPECT_DOUBLE_EQ(progress[1].averages.back().rows_per_s, 20 / 3.0);
}

TEST(TeamLossTest, AWorkerWithoutABatchDoesNotCount) {
  FakeJob workers(2);
  std::vector<RecordingProgress> progress(2);
  workers.Run([&](Team& team) {
    const SetClock clock;
    TeamLoss losses(team, progress[team.rank()], clock);
    const bool has_batch = team.rank() == 0;
    SYNCGRADS_EXPECT_OK(losses.Stepped(1, has_batch ? 3 : 0,
                                       has_batch ? std::optional<double>(0.5) : std::nullopt,
                                       /*is_last=*/false));
    SYNCGRADS_EXPECT_OK(losses.Stepped(2, 0, std::nullopt, /*is_last=*/true));
  });
  ASSERT_EQ(progress[1].averages.size(), 2u);
  EXPECT_EQ(progress[1].averages[0].loss, 0.5);
  EXPECT_EQ(progress[1].averages[1].loss, std::nullopt);
}

}  // namespace
}  // namespace syncgrads
