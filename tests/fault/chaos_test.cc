// Runs a few schedules of each kind. Also tests that the checks of a run detect wrong runs.

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fault/history.h"
#include "tests/fault/replay.h"
#include "tests/fault/run.h"
#include "tests/fault/schedule.h"

namespace syncgrads::fault {
namespace {

using ::testing::HasSubstr;

std::string ReadAll(const std::string& path) {
  std::ostringstream contents;
  contents << std::ifstream(path, std::ios::binary).rdbuf();
  return contents.str();
}

RunOptions OptionsOf(const std::string& name) {
  RunOptions options;
  options.directory = absl::StrCat(::testing::TempDir(), "/", name);
  // Long enough for instrumented programs on a busy machine.
  options.deadline = absl::Minutes(4);
  return options;
}

class ChaosTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(ChaosTest, EndsAsItHasTo) {
  const Schedule schedule = DrawSchedule(GetParam());
  SCOPED_TRACE(ToString(schedule));
  const auto report = Comparison(OptionsOf("chaos")).Run(schedule);
  EXPECT_TRUE(report.ok()) << report.status();
}

// Schedules with servers only: direct, with proxies, with relays. Then the same three with workers
// too. The second line: with checkpoints, a quorum, one-bit compression, and without elasticity.
INSTANTIATE_TEST_SUITE_P(Seeds, ChaosTest,
                         ::testing::Values(8, 50, 58, 15, 67, 41,  //
                                           30017, 30019, 30030, 30050));

// An undisturbed run and its history.
class JudgementTest : public ::testing::Test {
 protected:
  void Run(const JobKind& job) {
    const RunOptions options = OptionsOf("judged");
    const auto report = RunSchedule(Undisturbed(job), options);
    ASSERT_TRUE(report.ok()) << report.status();
    model_ = report->model;
    job_ = options.directory + "/chaos.job";
    for (int worker = 0; worker < kWorkers; ++worker) {
      ASSERT_TRUE(
          AddTo(history_, ReadAll(absl::StrCat(options.directory, "/worker-", worker, ".0.events")))
              .ok());
    }
  }
  absl::StatusOr<std::string> Replayed() const {
    const std::string output = absl::StrCat(::testing::TempDir(), "/replayed.safetensors");
    const absl::Status status = Replay(job_, kWorkers, history_, output);
    if (!status.ok()) return status;
    return ReadAll(output);
  }
  // Returns the logged step of every worker.
  std::vector<Step*> Views(uint64_t step) {
    std::vector<Step*> views;
    for (auto& [worker, stints] : history_) views.push_back(&stints[0].steps[step - 1]);
    return views;
  }

  std::string model_;
  std::string job_;
  History history_;
};

TEST_F(JudgementTest, AContributionThatWasNotCountedMakesAnotherModel) {
  Run({});
  EXPECT_EQ(*Replayed(), model_);
  for (Step* step : Views(300)) step->contributors.pop_back();
  EXPECT_NE(*Replayed(), model_);
}

TEST_F(JudgementTest, APartThatWasNotCountedMakesAnotherModel) {
  Run({.servers_optimize = true});
  const std::vector<std::vector<std::string>> all(5, Views(300)[0]->contributors);
  for (Step* step : Views(300)) step->parts = all;
  EXPECT_EQ(*Replayed(), model_);
  for (Step* step : Views(300)) step->parts[3].pop_back();
  EXPECT_NE(*Replayed(), model_);
}

TEST_F(JudgementTest, OtherRowsAreFound) {
  Run({.dynamic = true});
  EXPECT_EQ(*Replayed(), model_);
  Step& step = *Views(300)[1];
  std::swap(step.rows[0], step.rows[1]);
  EXPECT_THAT(std::string(Replayed().status().message()), HasSubstr("worker-1 trained on rows"));
  step.rows.clear();
  EXPECT_THAT(std::string(Replayed().status().message()), HasSubstr("worker-1 trained on rows"));
}

// Rows are assigned step by step. An epoch ends while the last rows of a pass are assigned to a
// worker that is lost, and none to the others. These skip the step with which the next epoch
// begins.
TEST_F(JudgementTest, WhoWasDealtNothingMaySkipTheFirstStepOfAnEpoch) {
  Run({.dynamic = true});
  for (uint64_t number = 300; number <= 400; ++number) {
    for (Step* step : Views(number)) step->epoch = 2;
  }
  EXPECT_EQ(*Replayed(), model_);
  for (Step* step : Views(300)) {
    step->rows.clear();
    step->contributors.clear();
  }
  // The rows that these workers should have had are assigned at the end of the pass, one step later
  // than before.
  EXPECT_THAT(std::string(Replayed().status().message()), HasSubstr("in step 376"));
}

}  // namespace
}  // namespace syncgrads::fault
