// The Iris job through real servers and workers: what has to be bit-identical is.

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Ne;
using ::testing::Not;

// The parameters that three workers end with, if they are the same.
std::string Train(int servers, const std::vector<std::string>& flags = {}) {
  Cluster cluster(servers);
  const std::vector<std::string> files = TrainOn(cluster, WriteIrisJob("iris"), 3, flags);
  EXPECT_THAT(files, Each(files[0])) << "the replicas differ, with " << servers << " servers";
  EXPECT_FALSE(files[0].empty());
  return files[0];
}

TEST(IrisTest, ParametersDoNotDependOnTheNumberOfServers) {
  const std::string one = Train(1);
  EXPECT_EQ(Train(2), one);
  EXPECT_EQ(Train(3), one);
}

TEST(IrisTest, TwoRunsWithOneSeedGiveTheSameParameters) {
  EXPECT_EQ(Train(2, {"--seed=5"}), Train(2, {"--seed=5"}));
}

TEST(IrisTest, AnotherSeedGivesOtherParameters) {
  EXPECT_THAT(Train(1, {"--seed=5"}), Ne(Train(1, {"--seed=6"})));
}

TEST(IrisTest, TheOptimizerCanRunOnTheServers) {
  const std::string job =
      WriteIrisJob("on_servers", [](v1::JobFile& file) { file.set_place(v1::SERVERS); });
  std::vector<std::string> first;
  for (int servers : {1, 2, 3}) {
    Cluster cluster(servers);
    const std::vector<std::string> files = TrainOn(cluster, job, 3);
    if (first.empty()) first = files;
    EXPECT_THAT(files, Each(first[0])) << "with " << servers << " servers";
  }
}

TEST(IrisTest, LauncherTrainsItAndPrintsTheHeldOutAccuracy) {
  const auto run = RunProgram(
      {.program = "worker/launch/ps-launch",
       .args = {absl::StrCat("--job=", WriteIrisJob("launched")), "--servers=2", "--workers=3",
                "--server_program=server/ps-server", "--worker_program=worker/ps-worker"}},
      kLongEnough);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->exit, ExitCode(0)) << run->output;
  EXPECT_THAT(run->output, HasSubstr("accuracy"));
  EXPECT_THAT(run->output, HasSubstr("the 3 replicas are bit-identical"));
}

TEST(IrisTest, ATraceShowsWhereTheTimeGoesInTheFirstSteps) {
  const std::string path = ::testing::TempDir() + "/trace";
  const auto run = RunProgram(
      {.program = "worker/launch/ps-launch",
       .args = {absl::StrCat("--job=", WriteIrisJob("traced")), "--servers=2", "--workers=3",
                "--server_program=server/ps-server", "--worker_program=worker/ps-worker", "--",
                absl::StrCat("--trace=", path, ".json"), "--trace_steps=3"}},
      kLongEnough);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->exit, ExitCode(0)) << run->output;
  for (const int worker : {0, 1, 2}) {
    std::ifstream file(absl::StrCat(path, ".worker-", worker, ".json"));
    const std::string trace(std::istreambuf_iterator<char>(file), {});
    for (const char* event : {"forward dense1", "backward dense1", "push dense1/kernel",
                              "wait for step 1", "update", "step 3"}) {
      EXPECT_THAT(trace, HasSubstr(absl::StrCat("\"", event))) << worker;
    }
    EXPECT_THAT(trace, Not(HasSubstr("\"step 4\"")));
  }
}

TEST(IrisTest, AutotuneSaysWhatItHasFound) {
  const auto run =
      RunProgram({.program = "worker/launch/ps-launch",
                  .args = {absl::StrCat("--job=", WriteIrisJob("autotuned")), "--servers=2",
                           "--workers=3", "--server_program=server/ps-server",
                           "--worker_program=worker/ps-worker", "--", "--autotune"}},
                 kLongEnough);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->exit, ExitCode(0)) << run->output;
  EXPECT_THAT(run->output, HasSubstr("autotune: chunk size: a step in chunks of "));
  EXPECT_THAT(run->output, HasSubstr("autotune: connections: a step with "));
  EXPECT_THAT(run->output, HasSubstr("autotune: send window: a step with "));
  EXPECT_THAT(run->output, HasSubstr("autotune: polling threads: a step with "));
  EXPECT_THAT(run->output, HasSubstr("the 3 replicas are bit-identical"));
}

}  // namespace
}  // namespace syncgrads::testing
