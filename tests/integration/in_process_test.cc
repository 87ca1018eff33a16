// Several workers in one process, through real servers.

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;

// One process with so many workers.
std::unique_ptr<Process> Start(const Cluster& cluster, const std::string& job, int workers,
                               int world_size, std::vector<std::string> flags = {}) {
  flags.push_back(absl::StrCat("--workers_in_process=", workers));
  return cluster.StartWorker(job, /*rank=*/0, world_size, flags);
}

std::string RankOutput(const std::string& name, int rank) {
  return TemporaryPath(absl::StrCat(name, ".rank", rank, ".safetensors"));
}

TEST(InProcessTest, WorkersInOneProcessTrainAsThoseOfThreeProcesses) {
  Cluster cluster(2);
  const std::vector<std::string> apart = TrainOn(cluster, WriteIrisJob("apart"), 3);
  const std::string job = WriteIrisJob("apart");  // the name is in the model's file
  const auto process = Start(
      cluster, job, 3, 3,
      {absl::StrCat("--output=", TemporaryPath("together.safetensors")), "--output_per_rank"});
  ASSERT_EQ(WaitFor(*process), ExitCode(0)) << process->output();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ReadFileOrDie(RankOutput("together", rank)), apart[rank]) << "rank " << rank;
  }
  EXPECT_THAT(process->output(), HasSubstr("[worker 0] the 3 replicas are bit-identical"));
}

TEST(InProcessTest, TheErrorSaysWhichWorkerAndTheOthersGoOn) {
  Cluster cluster(1);
  // The job has room for three.
  const auto process = Start(cluster, WriteIrisJob("one_too_many"), 4, 3);
  const Exit exit = WaitFor(*process);
  EXPECT_THAT(process->output(), HasSubstr("ps-worker: worker 3: "));
  EXPECT_THAT(process->output(), HasSubstr("[worker 0] the 3 replicas are bit-identical"));
  EXPECT_EQ(exit, ExitCode(2)) << process->output();
}

TEST(InProcessTest, ASignalStopsAllOfThem) {
  Cluster cluster(1);
  const auto process = Start(cluster, WriteLongJob("stopped", 1'000'000), 2, 2);
  ASSERT_TRUE(process->WaitForLine("[worker 0] step ", kLongEnough).ok()) << process->output();
  process->Kill(SIGTERM);
  EXPECT_EQ(WaitFor(*process), ExitCode(143)) << process->output();
  EXPECT_THAT(process->output(), HasSubstr("worker 0: CANCELLED"));
  EXPECT_THAT(process->output(), HasSubstr("worker 1: CANCELLED"));
}

}  // namespace
}  // namespace syncgrads::testing
