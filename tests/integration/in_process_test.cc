// Several workers in one process, with real servers.

#include <algorithm>
#include <csignal>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;

// Starts one process with `workers` workers.
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
  // Same name as above, because the model file contains it.
  const std::string job = WriteIrisJob("apart");
  const auto process = Start(
      cluster, job, 3, 3,
      {absl::StrCat("--output=", TemporaryPath("together.safetensors")), "--output_per_rank"});
  ASSERT_EQ(WaitFor(*process), ExitCode(0)) << process->output();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ReadFileOrDie(RankOutput("together", rank)), apart[rank]) << "rank " << rank;
  }
  EXPECT_THAT(process->output(), HasSubstr("[worker 0] the 3 replicas are bit-identical"));
}

TEST(InProcessTest, TheirServerCanBeInTheSameProcessAndServesOthersToo) {
  const std::string job = WriteIrisJob("apart");
  const auto start = [&](std::vector<std::string> flags, const std::string& output) {
    flags.insert(flags.end(),
                 {absl::StrCat("--job=", job), "--world_size=3", "--timeout=2m",
                  absl::StrCat("--output=", TemporaryPath(output)), "--output_per_rank"});
    auto process = Process::Start({.program = "worker/ps-worker", .args = flags});
    EXPECT_TRUE(process.ok()) << process.status();
    return *std::move(process);
  };
  const auto own = start({"--serve=0", "--workers_in_process=2", "--rank=0"}, "own.safetensors");
  const auto line = own->WaitForLine("ps-worker serves workers on port ", kLongEnough);
  ASSERT_TRUE(line.ok()) << line.status();
  const std::string port = line->substr(line->rfind(' ') + 1);
  const auto other =
      start({absl::StrCat("--server=127.0.0.1:", port), "--rank=2"}, "own.safetensors");
  EXPECT_EQ(WaitFor(*other), ExitCode(0)) << other->output();
  EXPECT_EQ(WaitFor(*own), ExitCode(0)) << own->output();
  EXPECT_THAT(own->output(), HasSubstr("[worker 0] the 3 replicas are bit-identical"));
  Cluster cluster(1);
  const std::vector<std::string> apart = TrainOn(cluster, job, 3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ReadFileOrDie(RankOutput("own", rank)), apart[rank]) << "rank " << rank;
  }
}

TEST(InProcessTest, AServerThatWaitsForOtherWorkersNamesTheirJobs) {
  const auto start = [&](const std::string& job, int rank, int world_size,
                         const std::string& server) {
    auto process =
        Process::Start({.program = "worker/ps-worker",
                        .args = {absl::StrCat("--job=", job), server, absl::StrCat("--rank=", rank),
                                 absl::StrCat("--world_size=", world_size)}});
    EXPECT_TRUE(process.ok()) << process.status();
    return *std::move(process);
  };
  const std::string job = WriteIrisJob("served");
  const auto own = start(job, 0, 2, "--serve=0");
  const auto line = own->WaitForLine("ps-worker serves workers on port ", kLongEnough);
  ASSERT_TRUE(line.ok()) << line.status();
  const std::string server =
      absl::StrCat("--server=127.0.0.1:", line->substr(line->rfind(' ') + 1));
  const auto longer = start(WriteLongJob("longer", 1'000'000'000), 0, 1, server);
  ASSERT_TRUE(longer->WaitForLine("joined job ", kLongEnough).ok()) << longer->output();
  const auto other = start(job, 1, 2, server);
  EXPECT_EQ(WaitFor(*other), ExitCode(0)) << other->output();
  EXPECT_TRUE(own->WaitForLine("ps-worker serves until job \"longer\" ends, which has 1 worker",
                               kLongEnough)
                  .ok())
      << own->output();
  longer->Kill(SIGTERM);
  WaitFor(*longer);
  EXPECT_EQ(WaitFor(*own), ExitCode(0)) << own->output();
}

TEST(InProcessTest, APortOutOfRangeOrTwoServersAreRefused) {
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--serve=70000"}, {"--serve=0", "--server=127.0.0.1:7000"}}) {
    std::vector<std::string> all = flags;
    all.push_back(absl::StrCat("--job=", WriteIrisJob("refused")));
    const auto run = RunProgram({.program = "worker/ps-worker", .args = all}, kLongEnough);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->exit, ExitCode(2)) << run->output;
    EXPECT_THAT(run->output, HasSubstr("--serve is "));
  }
}

TEST(InProcessTest, ATrainerOfOnesOwnCanHaveItsServerInItsProcess) {
  const auto run =
      RunProgram({.program = "examples/own_trainer/own_server", .args = {"3"}}, kLongEnough);
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->exit, ExitCode(0)) << run->output;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(run->output, HasSubstr(absl::StrCat("rank ", rank, ": w = 2\n")));
  }
}

TEST(InProcessTest, TheErrorSaysWhichWorkerAndTheOthersGoOn) {
  Cluster cluster(1);
  // The job accepts three workers.
  const auto process = Start(cluster, WriteIrisJob("one_too_many"), 4, 3);
  const Exit exit = WaitFor(*process);
  EXPECT_THAT(process->output(), HasSubstr("ps-worker: worker 3: "));
  EXPECT_THAT(process->output(), HasSubstr("[worker 0] the 3 replicas are bit-identical"));
  EXPECT_EQ(exit, ExitCode(2)) << process->output();
}

// Returns the number of TCP connections from this host to `address`.
int CountConnections(const std::string& address) {
  const int port = std::stoi(address.substr(address.rfind(':') + 1));
  const std::string remote = absl::StrFormat(":%04X 01 ", port);  // 01: established
  int count = 0;
  for (const char* const table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      if (absl::StrContains(line, remote)) ++count;
    }
  }
  return count;
}

TEST(InProcessTest, TheyShareTheirConnectionsAndComeBackToAServerThatWasKilled) {
  Cluster cluster(2, {"--shared_memory=false", "--unix_socket=false", "--stream_grace=30s"});
  const std::string job = WriteIrisJob("shared", [](v1::JobFile& job) {
    job.set_epochs(300);
    job.set_chunk_bytes(128);  // so that both servers have chunks
  });
  const auto process = Start(cluster, job, 3, 3, {"--log_every=10"});
  // Connections are counted on server 1. Server 0, the coordinator, also has control connections
  // from the workers and the follow stream of server 1.
  constexpr int kFollower = 1;
  constexpr int kConnections = 2;  // --connections_per_server
  int most = 0;
  absl::StatusOr<Exit> exit = absl::UnknownError("");
  // The workers connect before the first step, and do not disconnect before the last one.
  for (const absl::Time deadline = absl::Now() + kLongEnough;
       most < kConnections && !exit.ok() && absl::Now() < deadline;
       exit = process->Wait(absl::Milliseconds(5))) {
    most = CountConnections(cluster.address(kFollower));
  }
  ASSERT_EQ(most, kConnections) << process->output();
  ASSERT_TRUE(process->WaitForLine("[worker 0] step ", kLongEnough).ok()) << process->output();
  cluster.server(kFollower).Kill(SIGKILL);
  WaitFor(cluster.server(kFollower));
  cluster.Restart(kFollower);
  for (const absl::Time deadline = absl::Now() + kLongEnough; !exit.ok() && absl::Now() < deadline;
       exit = process->Wait(absl::Milliseconds(5))) {
    most = std::max(most, CountConnections(cluster.address(kFollower)));
  }
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(*exit, ExitCode(0)) << process->output();
  EXPECT_THAT(process->output(), HasSubstr("[worker 0] the 3 replicas are bit-identical"));
  EXPECT_EQ(most, kConnections);
}

TEST(InProcessTest, ASignalStopsAllOfThem) {
  Cluster cluster(1);
  const auto process = Start(cluster, WriteLongJob("stopped", 300'000), 2, 2, {"--log_every=100"});
  ASSERT_TRUE(process->WaitForLine("[worker 0] step ", kLongEnough).ok()) << process->output();
  process->Kill(SIGTERM);
  EXPECT_EQ(WaitFor(*process), ExitCode(143)) << process->output();
  EXPECT_THAT(process->output(), HasSubstr("worker 0: CANCELLED"));
  EXPECT_THAT(process->output(), HasSubstr("worker 1: CANCELLED"));
}

}  // namespace
}  // namespace syncgrads::testing
