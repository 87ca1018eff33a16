// Servers lose a job's state while its workers are alive. The job restarts by itself as a new
// generation, from the workers' state or from a checkpoint.

#include <grpcpp/create_channel.h>
#include <signal.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kServers = 2;
constexpr int kWorkers = 3;
// The state is removed after this round; the job has 1500 steps.
constexpr uint64_t kRounds = 300;

struct Case {
  const char* name;
  v1::OptimizerPlacement place;
  std::vector<int> servers;
};

// Removes all of a server's state except its port.
void Forget(const std::string& state) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(state)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("plan", 0) == 0 || name.rfind("group-", 0) == 0) files.push_back(entry.path());
  }
  EXPECT_GE(files.size(), 3u);
  for (const std::filesystem::path& file : files) std::filesystem::remove_all(file);
}

class LostStateTest : public ::testing::TestWithParam<Case> {
 protected:
  std::string WriteJob(const std::string& name) const {
    const std::string checkpoints = TemporaryPath(name + "-checkpoints");
    std::filesystem::remove_all(checkpoints);
    return WriteIrisJob(name, [&](v1::JobFile& job) {
      job.set_epochs(300);
      job.set_chunk_bytes(128);
      job.set_optimizer_placement(GetParam().place);
      if (job.optimizer_placement() == v1::WORKERS) return;
      job.mutable_checkpoint()->set_directory(checkpoints);
      job.mutable_checkpoint()->set_every_steps(50);
    });
  }

  // Waits until the open round of the training group is at least `round`.
  void AwaitRound(const std::string& coordinator, uint64_t round) {
    const auto stub =
        v1::Admin::NewStub(grpc::CreateChannel(coordinator, grpc::InsecureChannelCredentials()));
    const absl::Time deadline = absl::Now() + kLongEnough;
    while (absl::Now() < deadline) {
      grpc::ClientContext context;
      context.set_wait_for_ready(true);
      context.set_deadline(absl::ToChronoTime(deadline));
      v1::GetStatusReply reply;
      ASSERT_TRUE(stub->GetStatus(&context, {}, &reply).ok());
      for (const v1::JobStatus& job : reply.jobs()) {
        for (const v1::GroupStatus& group : job.groups()) {
          if (group.name() == "model" && group.open_round() >= round) return;
        }
      }
      absl::SleepFor(absl::Milliseconds(2));
    }
    ADD_FAILURE() << "no round " << round;
  }
};

TEST_P(LostStateTest, TheWorkersBeginAgainAndEndAsIfNothingHadHappened) {
  std::vector<std::string> undisturbed;
  {
    const Cluster cluster(kServers);
    undisturbed = TrainOn(cluster, WriteJob("kept"), kWorkers);
  }
  // Both runs have the same job name, because the output file contains it.
  const std::string job = WriteJob("kept");
  Cluster cluster(kServers, {"--exit_when_done"});
  std::vector<std::unique_ptr<Process>> workers;
  const std::string output = TemporaryPath("lost.safetensors");
  for (int rank = 0; rank < kWorkers; ++rank) {
    workers.push_back(cluster.StartWorker(
        job, rank, kWorkers, {absl::StrCat("--output=", output), "--output_per_rank"}));
  }
  if (GetParam().place == v1::SERVERS) {
    // The first checkpoint, which is written in the background.
    const auto kept = workers[0]->WaitForLine("checkpoint after step ", kLongEnough);
    ASSERT_TRUE(kept.ok()) << kept.status();
  }
  AwaitRound(cluster.coordinator(), kRounds);
  for (const int server : GetParam().servers) cluster.server(server).Kill(SIGKILL);
  for (const int server : GetParam().servers) {
    EXPECT_EQ(WaitFor(cluster.server(server)), KilledBy(SIGKILL));
    Forget(cluster.state(server));
    cluster.Restart(server);
  }
  for (int rank = 0; rank < kWorkers; ++rank) {
    EXPECT_EQ(WaitFor(*workers[rank]), ExitCode(0)) << workers[rank]->output();
    EXPECT_THAT(workers[rank]->output(), HasSubstr("starting again"));
    const std::string path = TemporaryPath(absl::StrCat("lost.rank", rank, ".safetensors"));
    EXPECT_TRUE(ReadFileOrDie(path) == undisturbed[rank]) << "rank " << rank;
  }
  const std::string from = GetParam().place == v1::WORKERS
                               ? "from the state in this worker's memory"
                               : "kept-checkpoints/step-";
  EXPECT_THAT(absl::StrCat(workers[0]->output(), workers[1]->output(), workers[2]->output()),
              HasSubstr(from));
  for (int server = 0; server < kServers; ++server) {
    EXPECT_EQ(WaitFor(cluster.server(server)), ExitCode(0)) << cluster.server(server).output();
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, LostStateTest,
                         ::testing::Values(Case{"AverageOther", v1::WORKERS, {1}},
                                           Case{"AverageCoordinator", v1::WORKERS, {0}},
                                           Case{"AverageAll", v1::WORKERS, {0, 1}},
                                           Case{"OptimizerOther", v1::SERVERS, {1}},
                                           Case{"OptimizerCoordinator", v1::SERVERS, {0}},
                                           Case{"OptimizerAll", v1::SERVERS, {0, 1}}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace syncgrads::testing
