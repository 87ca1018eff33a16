// Runs the examples digits and tflon as their READMEs describe.

#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Test;

// Returns the accuracy on the validation set that worker 0 printed; -1 if there is none.
double HeldOutAccuracy(const std::string& output) {
  const size_t line = output.find("held out: ");
  const size_t begin = output.find("accuracy ", line);
  if (line == std::string::npos || begin == std::string::npos) return -1;
  double accuracy = -1;
  const std::string text = output.substr(begin + 9, 6);
  return absl::SimpleAtod(text, &accuracy) ? accuracy : -1;
}

// Runs a job with ps-launch. `flags` are passed to the workers.
void Launch(const std::string& job, const std::vector<std::string>& flags, std::string& output) {
  std::vector<std::string> args = {absl::StrCat("--job=", job), "--server_program=server/ps-server",
                                   "--worker_program=worker/ps-worker", "--"};
  args.insert(args.end(), flags.begin(), flags.end());
  const auto run = RunProgram({.program = "worker/launch/ps-launch", .args = args}, kLongEnough);
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_EQ(run->exit, ExitCode(0)) << run->output;
  output = run->output;
}

TEST(DigitsTest, TwoWorkersLearnToReadDigitsThatTheyHaveNotSeenWithAnySeed) {
  for (const int seed : {1, 2, 3}) {
    std::string output;
    Launch("examples/digits/digits.job", {absl::StrCat("--seed=", seed)}, output);
    if (Test::HasFatalFailure()) return;
    EXPECT_GE(HeldOutAccuracy(output), 0.97) << "seed " << seed << "\n" << output;
    EXPECT_THAT(output, HasSubstr("the 2 replicas are bit-identical"));
  }
}

// Workers that train alone, and continue with the state of the one that reads best.
TEST(DigitsTest, TheBestOfTwoWorkersIsTakenAfterEachCycle) {
  const std::string folder = std::filesystem::absolute("examples/digits").string();
  const std::string job = WriteTemporaryFile(
      "best_of.job",
      absl::StrReplaceAll(
          absl::StrCat(ReadFileOrDie("examples/digits/digits.job"),
                       "consistency { best_of { steps: 15 factor_every: 10 factor: 0.5 } }\n"),
          {{"digits.csv.gz", folder + "/digits.csv.gz"}, {"epochs: 30", "epochs: 10"}}));
  std::string output;
  Launch(job, {}, output);
  if (Test::HasFatalFailure()) return;
  // 719 rows of each worker in batches of 32: 23 steps in each of the ten epochs.
  EXPECT_THAT(output, HasSubstr("made 230 steps in 16 rounds"));
  EXPECT_THAT(output, HasSubstr("the 2 replicas are bit-identical"));
  EXPECT_GE(HeldOutAccuracy(output), 0.9) << output;
}

// tflon's tutorial: tables that are joined by ID, and the best of three initialisations.
TEST(DigitsTest, TheTflonNetworkLearnsTheCurveFromJoinedTables) {
  const std::string tables = TemporaryPath("tables");
  const auto written = RunProgram(
      {.program = "python3", .args = {"examples/tflon/make_tables.py", tables}}, kLongEnough);
  ASSERT_TRUE(written.ok()) << written.status();
  ASSERT_EQ(written->exit, ExitCode(0)) << written->output;
  const std::string job = WriteTemporaryFile(
      "tflon.job", absl::StrReplaceAll(ReadFileOrDie("examples/tflon/tflon.job"),
                                       {{"path: \"tables\"", "path: \"" + tables + "\""}}));
  std::string output;
  Launch(job, {}, output);
  if (Test::HasFatalFailure()) return;
  EXPECT_THAT(output, HasSubstr("the 2 replicas are bit-identical"));
  for (const int number : {1, 2, 3}) {
    EXPECT_THAT(output, HasSubstr(absl::StrCat("initialisation ", number, " of 3: held out: ")));
  }
  std::smatch area;
  ASSERT_TRUE(std::regex_search(output, area, std::regex("held out: .*AUC ([0-9.]+)"))) << output;
  EXPECT_GE(std::stod(area[1]), 0.999) << output;
}

}  // namespace
}  // namespace syncgrads::testing
