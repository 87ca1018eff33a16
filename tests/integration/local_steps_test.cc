// The digits example with local steps beside the one that synchronises every step.

#include <regex>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;

// What worker 0 says at the end.
struct Summary {
  double accuracy = -1;
  uint64_t steps = 0, rounds = 0;
};

Summary RunJob(const std::string& job) {
  const auto run = RunProgram(
      {.program = "worker/launch/ps-launch",
       .args = {absl::StrCat("--job=examples/digits/", job), "--server_program=server/ps-server",
                "--worker_program=worker/ps-worker"}},
      kLongEnough);
  if (!run.ok() || run->exit != ExitCode(0)) {
    ADD_FAILURE() << (run.ok() ? run->output : run.status().ToString());
    return {};
  }
  EXPECT_THAT(run->output, HasSubstr("the 2 replicas are bit-identical"));
  std::smatch made, accuracy;
  EXPECT_TRUE(
      std::regex_search(run->output, made, std::regex("made (\\d+) steps in (\\d+) rounds")));
  EXPECT_TRUE(
      std::regex_search(run->output, accuracy, std::regex("held out: .*accuracy ([0-9.]+) ")));
  if (made.empty() || accuracy.empty()) return {};
  return {std::stod(accuracy[1]), std::stoull(made[1]), std::stoull(made[2])};
}

TEST(LocalStepsTest, DigitsAreReadAsWellWithAnEighthOfTheRounds) {
  const Summary every_step = RunJob("digits.job");
  const Summary local = RunJob("local_steps.job");
  EXPECT_EQ(every_step.rounds, every_step.steps);
  EXPECT_EQ(local.steps, every_step.steps);
  EXPECT_EQ(local.rounds, (every_step.rounds + 7) / 8);
  EXPECT_GE(local.accuracy, every_step.accuracy - 0.01);
  RecordProperty("accuracy_sync", std::to_string(every_step.accuracy));
  RecordProperty("accuracy_local_steps", std::to_string(local.accuracy));
}

}  // namespace
}  // namespace syncgrads::testing
