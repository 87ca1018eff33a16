// Jobs whose steps do not wait for the slowest worker: real processes, one of which
// is stopped, and servers that are killed.

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
      : cluster_(2, {absl::StrCat("--lease=", lease), "--heartbeat=200ms", "--stall_warning=500ms",
                     "--exit_when_done"}) {}

  // `consistency` and more of the job.
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

  // The training group as a server has it; nothing if there is none.
  v1::GroupStatus Model(int server) const {
    const auto stub = v1::Admin::NewStub(
        grpc::CreateChannel(cluster_.address(server), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(5)));
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
  Start("place: SERVERS consistency { quorum { least: 3 } }");
  AwaitStep(10);
  workers_[3]->Kill(SIGSTOP);
  const uint64_t stopped = Model(0).open_round();
  // Of a step that it could have contributed to before it stopped, there is one.
  for (int server : {0, 1}) AwaitStep(stopped + 200, server);
  workers_[3]->Kill(SIGCONT);
  ExpectAllToEndEqual();
}

TEST_F(QuorumTest, InSyncModeAStoppedWorkerHoldsEverybodyUp) {
  Start("place: SERVERS");
  AwaitStep(10);
  workers_[3]->Kill(SIGSTOP);
  const auto stalled = cluster_.server(0).WaitForLine("has waited", kLongEnough);
  ASSERT_TRUE(stalled.ok()) << stalled.status();
  EXPECT_THAT(*stalled, HasSubstr("for worker \"worker-3\""));
  workers_[3]->Kill(SIGCONT);
  ExpectAllToEndEqual();
}

class ShortLeaseTest : public QuorumTest {
 protected:
  ShortLeaseTest() : QuorumTest("4s") {}
};

TEST_F(ShortLeaseTest, InSyncModeAStoppedWorkerIsNamedThenDroppedAndComesBack) {
  Start("elastic {} place: SERVERS");
  AwaitStep(10);
  workers_[3]->Kill(SIGSTOP);
  for (int server : {0, 1}) {
    const auto stalled = cluster_.server(server).WaitForLine("has waited", kLongEnough);
    ASSERT_TRUE(stalled.ok()) << stalled.status();
    EXPECT_THAT(*stalled, HasSubstr("for worker \"worker-3\""));
    // It is said when the warning is due, and not when the lease ends.
    EXPECT_THAT(*stalled, ::testing::ContainsRegex("has waited (0\\.[5-9]|[12]\\.[0-9])"));
  }
  const uint64_t stalled_in = Model(0).open_round();
  const auto dropped =
      cluster_.server(0).WaitForLine("is dropped: lease of 4.0s ended", kLongEnough);
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_THAT(*dropped, HasSubstr("worker \"worker-3\""));
  AwaitStep(stalled_in + 100);
  workers_[3]->Kill(SIGCONT);
  const auto again = workers_[3]->WaitForLine("joins again", kLongEnough);
  ASSERT_TRUE(again.ok()) << again.status();
  ExpectAllToEndEqual();
}

// As much is kept as a worker that only has to share a processor may fall behind.
TEST_F(QuorumTest, WhereWorkersApplyTheOptimizerOneThatIsFarBehindJoinsAgain) {
  Start("elastic {} consistency { quorum { least: 3 kept: 100 } }");
  AwaitStep(10);
  workers_[3]->Kill(SIGSTOP);
  AwaitStep(Model(0).open_round() + 200);
  workers_[3]->Kill(SIGCONT);
  const auto again = workers_[3]->WaitForLine("joins again", kLongEnough);
  ASSERT_TRUE(again.ok()) << again.status();
  ExpectAllToEndEqual();
}

TEST_F(QuorumTest, ServersThatAreKilledGoOnWithTheSetsThatWereFixed) {
  Start("place: SERVERS consistency { quorum { least: 3 grace_ms: 1 } }");
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
