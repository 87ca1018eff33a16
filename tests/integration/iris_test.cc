// The Iris job with real servers and workers: runs that must be bit-identical are compared.

#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Ne;
using ::testing::Not;

// Returns the parameters that three workers end with, which must be identical.
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

// The table is sorted by class, so each worker has the rows of one class.
TEST(IrisTest, WithAllRowsAndOneClassForEachWorkerAllFinishEqual) {
  const std::string job = WriteIrisJob(
      "every_row", [](v1::JobFile& file) { file.mutable_data()->set_validation_every(0); });
  const auto run = RunProgram(
      {.program = "worker/launch/ps-launch",
       .args = {absl::StrCat("--job=", job), "--servers=2", "--workers=3",
                "--server_program=server/ps-server", "--worker_program=worker/ps-worker"}},
      kLongEnough);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->exit, ExitCode(0)) << run->output;
  EXPECT_THAT(run->output, HasSubstr("every_row: 150 rows in 3 shards, 0 held out; 3 workers, "
                                     "batches of 8; 235 parameters; 350 steps"));
  EXPECT_THAT(run->output, HasSubstr("made 350 steps in 350 rounds"));
  EXPECT_THAT(run->output, HasSubstr("the 3 replicas are bit-identical"));
  std::smatch accuracy;
  ASSERT_TRUE(std::regex_search(run->output, accuracy,
                                std::regex("trained on: .*\\(([0-9]+) of 150 rows\\)")))
      << run->output;
  EXPECT_GE(std::stoi(accuracy[1]), 140);
}

TEST(IrisTest, TwoRunsWithOneSeedGiveTheSameParameters) {
  EXPECT_EQ(Train(2, {"--seed=5"}), Train(2, {"--seed=5"}));
}

TEST(IrisTest, AnotherSeedGivesOtherParameters) {
  EXPECT_THAT(Train(1, {"--seed=5"}), Ne(Train(1, {"--seed=6"})));
}

TEST(IrisTest, TheOptimizerCanRunOnTheServers) {
  const std::string job = WriteIrisJob(
      "on_servers", [](v1::JobFile& file) { file.set_optimizer_placement(v1::SERVERS); });
  std::vector<std::string> first;
  for (int servers : {1, 2, 3}) {
    Cluster cluster(servers);
    const std::vector<std::string> files = TrainOn(cluster, job, 3);
    if (first.empty()) first = files;
    EXPECT_THAT(files, Each(first[0])) << "with " << servers << " servers";
  }
}

TEST(IrisTest, LauncherEncryptsAllConnections) {
  // Without shared memory and unix sockets, all payloads are encrypted too.
  const auto run = RunProgram(
      {.program = "worker/launch/ps-launch",
       .args = {absl::StrCat("--job=", WriteIrisJob("encrypted")), "--servers=2", "--workers=2",
                "--server_program=server/ps-server", "--worker_program=worker/ps-worker", "--tls",
                "--server_args=--shared_memory=false,--unix_socket=false"}},
      kLongEnough);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->exit, ExitCode(0)) << run->output;
  EXPECT_THAT(run->output, HasSubstr("[launch] connections are encrypted"));
  EXPECT_THAT(run->output,
              HasSubstr("connections are encrypted, and peers need a certificate with the name"));
  EXPECT_THAT(run->output, HasSubstr("payloads to all 2 servers go over TCP"));
  EXPECT_THAT(run->output, HasSubstr("the 2 replicas are bit-identical"));
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
  // ./dev demo prints these lines. The number of progress lines depends on the time that it takes,
  // and so does the number of attempts in which server 1 connects to the coordinator.
  const std::vector<std::string> lines =
      absl::StrSplit(run->output, '\n', [](absl::string_view line) {
        return !line.empty() && !absl::StartsWith(line, "[worker 0] step ") &&
               !absl::StrContains(line, "the stream to the coordinator at ");
      });
  EXPECT_LE(lines.size(), 27u) << run->output;
  for (int worker = 0; worker < 3; ++worker) {
    EXPECT_THAT(lines,
                Contains(absl::StrCat("[worker ", worker,
                                      "] payloads to all 2 servers go through shared memory")));
  }
}

TEST(IrisTest, AtLevelDebugTheLauncherPrintsGroupsPathsAndMoreOfTheProgress) {
  const auto run =
      RunProgram({.program = "worker/launch/ps-launch",
                  .args = {absl::StrCat("--job=", WriteIrisJob("debug")), "--servers=2",
                           "--workers=3", "--log_level=debug", "--server_program=server/ps-server",
                           "--worker_program=worker/ps-worker"}},
                 kLongEnough);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->exit, ExitCode(0)) << run->output;
  EXPECT_THAT(run->output, HasSubstr("D ps-server 0: job \"debug\": group 0 "));
  EXPECT_THAT(run->output, HasSubstr("[worker 2] server 1: payloads go through shared memory"));
  EXPECT_THAT(run->output, HasSubstr("[worker 0] step 120/250"));
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
