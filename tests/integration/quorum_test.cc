// Jobs with a quorum do not wait for the slowest worker. Real processes: a worker is stopped, and
// servers are killed.

#include <grpcpp/create_channel.h>
#include <signal.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kWorkers = 4;
constexpr uint64_t kSteps = 6000;
constexpr absl::Duration kPoll = absl::Milliseconds(5);

class QuorumTest : public ::testing::Test {
 protected:
  explicit QuorumTest(const std::string& lease = "10m")
      : cluster_(2, {absl::StrCat("--lease=", lease), "--heartbeat_interval=200ms",
                     "--stall_warning=500ms", "--stream_grace=30s", "--exit_when_done"}) {}

  // Starts all workers of a job. `text` is appended to its job file: `consistency` and other
  // fields.
  void Start(const std::string& text) {
    const std::string job = WriteTemporaryFile(
        absl::StrCat(::testing::UnitTest::GetInstance()->current_test_info()->name(), ".job"),
        absl::StrCat("name: \"quorum\" seed: 7 batch_size: 8 workers: ", kWorkers,
                     " steps: ", kSteps,
                     " data { generated { rows: 3000 seed: 1 } } optimizer { adam {} }\n"
                     "model { layers { dense { outputs: 20 activation: TANH } } "
                     "layers { dense { outputs: 1 } } }\n"
                     "loss { sigmoid_cross_entropy {} } chunk_bytes: 64 ",
                     text));
    for (int rank = 0; rank < kWorkers; ++rank) {
      workers_.push_back(
          cluster_.StartWorker(job, rank, kWorkers, {absl::StrCat("--name=worker-", rank)}));
    }
  }

  // Returns the status of the training group on a server; empty if the group does not exist or the
  // server does not answer.
  v1::GroupStatus Model(int server) const {
    const auto stub = v1::Admin::NewStub(
        grpc::CreateChannel(cluster_.address(server), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(1)));
    v1::GetStatusReply reply;
    if (!stub->GetStatus(&context, {}, &reply).ok()) return {};
    for (const v1::JobStatus& job : reply.jobs()) {
      for (const v1::GroupStatus& group : job.groups()) {
        if (group.name() == "model") return group;
      }
    }
    return {};
  }
  void AwaitStep(uint64_t step, int server = 0) const {
    const absl::Time deadline = absl::Now() + kLongEnough;
    while (Model(server).open_round() <= step) {
      ASSERT_LT(absl::Now(), deadline) << "step " << step << " does not close";
      ASSERT_FALSE(workers_[0]->Wait(absl::ZeroDuration()).ok()) << workers_[0]->output();
      absl::SleepFor(kPoll);
    }
  }
  void ExpectAllToEndEqual() {
    for (const auto& worker : workers_) {
      EXPECT_EQ(WaitFor(*worker), ExitCode(0)) << worker->output();
    }
    EXPECT_THAT(workers_[0]->output(), HasSubstr("the 4 replicas are bit-identical"));
  }

  Cluster cluster_;
  std::vector<std::unique_ptr<Process>> workers_;
};

TEST_F(QuorumTest, AStoppedWorkerHoldsNobodyUpAndCatchesUp) {
  Start("optimizer_placement: SERVERS consistency { quorum { least: 3 } }");
  AwaitStep(10);
  workers_[3]->Kill(SIGSTOP);
  const uint64_t stopped = Model(0).open_round();
  // The stopped worker may have contributed to one more step. All later steps close without it.
  for (int server : {0, 1}) AwaitStep(stopped + 200, server);
  workers_[3]->Kill(SIGCONT);
  ExpectAllToEndEqual();
}

TEST_F(QuorumTest, InSyncModeAStoppedWorkerHoldsEverybodyUp) {
  Start("optimizer_placement: SERVERS");
  AwaitStep(10);
  workers_[3]->Kill(SIGSTOP);
  // On a busy machine, earlier lines may name workers that were only slow.
  const auto stalled = cluster_.server(0).WaitForLine("s for worker \"worker-3\"", kLongEnough);
  ASSERT_TRUE(stalled.ok()) << stalled.status();
  EXPECT_THAT(*stalled, HasSubstr("has waited"));
  workers_[3]->Kill(SIGCONT);
  ExpectAllToEndEqual();
}

class ShortLeaseTest : public QuorumTest {
 protected:
  ShortLeaseTest() : QuorumTest("10s") {}
};

TEST_F(ShortLeaseTest, InSyncModeAStoppedWorkerIsNamedThenDroppedAndComesBack) {
  Start("elastic {} optimizer_placement: SERVERS");
  AwaitStep(10);
  workers_[3]->Kill(SIGSTOP);
  std::string warning;
  for (int server : {1, 0}) {
    const auto stalled =
        cluster_.server(server).WaitForLine("s for worker \"worker-3\"", kLongEnough);
    ASSERT_TRUE(stalled.ok()) << stalled.status();
    EXPECT_THAT(*stalled, HasSubstr("has waited"));
    warning = *stalled;
  }
  const uint64_t stalled_in = Model(0).open_round();
  const auto dropped =
      cluster_.server(0).WaitForLine("is dropped: lease of 10.0s ended", kLongEnough);
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_THAT(*dropped, HasSubstr("worker \"worker-3\""));
  // The warning is logged after --stall_warning, long before the lease ends.
  const std::string log = cluster_.server(0).output();
  EXPECT_LT(log.find(warning), log.find(*dropped));
  AwaitStep(stalled_in + 100);
  workers_[3]->Kill(SIGCONT);
  const auto again = workers_[3]->WaitForLine("rejoining", kLongEnough);
  ASSERT_TRUE(again.ok()) << again.status();
  ExpectAllToEndEqual();
}

// The group keeps 300 results. A worker that merely shares a processor with others does not fall
// that far behind, which at the end of the job would be too late to join again.
TEST_F(QuorumTest, WhereWorkersApplyTheOptimizerOneThatIsFarBehindJoinsAgain) {
  Start("elastic {} consistency { quorum { least: 3 kept: 300 } }");
  AwaitStep(10);
  workers_[3]->Kill(SIGSTOP);
  AwaitStep(Model(0).open_round() + 400);
  workers_[3]->Kill(SIGCONT);
  const auto again = workers_[3]->WaitForLine("rejoining", kLongEnough);
  ASSERT_TRUE(again.ok()) << again.status();
  ExpectAllToEndEqual();
}

TEST_F(QuorumTest, ServersThatAreKilledGoOnWithTheSetsThatWereFixed) {
  Start("optimizer_placement: SERVERS consistency { quorum { least: 3 grace_ms: 1 } }");
  for (const std::vector<int>& which : {std::vector<int>{1}, {0}, {0, 1}}) {
    AwaitStep(Model(0).open_round() + 50);
    for (int server : which) cluster_.server(server).Kill(SIGKILL);
    for (int server : which) EXPECT_EQ(WaitFor(cluster_.server(server)), KilledBy(SIGKILL));
    for (int server : which) cluster_.Restart(server);
  }
  AwaitStep(Model(0).open_round() + 50);
  ExpectAllToEndEqual();
}

}  // namespace
}  // namespace syncgrads::testing
