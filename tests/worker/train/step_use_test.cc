// Tests the reports of a trainer about each step besides its loss.

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/testing/fake_team.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/train/run.h"

namespace syncgrads {
namespace {

class RecordingProgress : public NoProgress {
 public:
  void Used(const StepUse& use) override { used.push_back(use); }
  void Stepped(uint64_t, std::optional<double>) override { ++steps; }

  std::vector<StepUse> used;
  size_t steps = 0;
};

class StepUseTest : public testing::Test {
 protected:
  // Trains with one worker on 20 rows, in batches of 5, for two passes. `more` is the rest of the
  // job file.
  RecordingProgress Train(const std::string& more) {
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
    RecordingProgress progress;
    FakeJob workers(1);
    workers.Run([&](Team& team) {
      TrainerOptions options;
      options.progress = &progress;
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

}  // namespace
}  // namespace syncgrads
