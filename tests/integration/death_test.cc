// A worker is killed in the middle of a run: the others finish, and the server reports which worker
// it waited for.

#include <signal.h>

#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;

// Enough steps for a signal in the middle, unless this test is paused for long.
constexpr uint64_t kSteps = 4000;
// No run makes so many steps within kLongEnough.
constexpr uint64_t kEndless = 100'000'000;
constexpr char kEarlyProgress[] = "--log_every=20";

class DeathTest : public ::testing::Test {
 protected:
  // Starts servers with `flags` and a run of `steps` steps, and waits for the first progress.
  void Start(int servers, const std::vector<std::string>& flags, int world_size, uint64_t steps) {
    workers_.clear();
    cluster_ = std::make_unique<Cluster>(servers, flags);
    const std::string job = WriteLongJob("long", steps);
    for (int rank = 0; rank < world_size; ++rank) {
      workers_.push_back(cluster_->StartWorker(
          job, rank, world_size, {absl::StrCat("--name=worker-", rank), kEarlyProgress}));
    }
    // Only worker 0 prints its progress.
    const auto line = workers_[0]->WaitForLine(absl::StrCat("/", steps), kLongEnough);
    ASSERT_TRUE(line.ok()) << line.status();
  }

  void ExpectServersToEnd(int servers) {
    for (int server = 0; server < servers; ++server) {
      EXPECT_EQ(WaitFor(cluster_->server(server)), ExitCode(0))
          << cluster_->server(server).output();
    }
  }

  std::unique_ptr<Cluster> cluster_;
  std::vector<std::unique_ptr<Process>> workers_;
};

TEST_F(DeathTest, TheOthersFinishWhenOneIsKilled) {
  // If the run has ended before the kill, a longer one is started.
  Exit exit = ExitCode(0);
  for (uint64_t steps = kSteps; exit == ExitCode(0) && steps < kEndless; steps *= 8) {
    ASSERT_NO_FATAL_FAILURE(Start(2, {"--stream_grace=3s", "--exit_when_done"}, 3, steps));
    workers_[2]->Kill(SIGKILL);
    exit = WaitFor(*workers_[2]);
  }
  EXPECT_EQ(exit, KilledBy(SIGKILL));
  EXPECT_EQ(WaitFor(*workers_[0]), ExitCode(0)) << workers_[0]->output();
  EXPECT_EQ(WaitFor(*workers_[1]), ExitCode(0)) << workers_[1]->output();
  ExpectServersToEnd(2);
}

TEST_F(DeathTest, TheServerNamesTheWorkerTheStepAndTheTimeWaited) {
  // With more servers, another one could have the model's chunks.
  Start(1, {"--stall_warning=500ms", "--stream_grace=3s"}, 3, kEndless);
  // The worker is killed only after the warning: once it is dropped, the step does not wait for it.
  workers_[2]->Kill(SIGSTOP);
  // On a busy machine, earlier lines may name workers that were only slow.
  const auto stalled = cluster_->server(0).WaitForLine("s for worker \"worker-2\"", kLongEnough);
  ASSERT_TRUE(stalled.ok()) << stalled.status();
  EXPECT_TRUE(std::regex_search(
      *stalled, std::regex("step [0-9]+ .*has waited [0-9.]+s for worker \"worker-2\"")))
      << *stalled;
  workers_[2]->Kill(SIGKILL);
  const auto dropped = cluster_->server(0).WaitForLine("is dropped", kLongEnough);
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_THAT(*dropped, HasSubstr("worker \"worker-2\""));
}

TEST_F(DeathTest, AWorkerThatIsStoppedIsDroppedAfterItsLease) {
  // If the run has ended before the signal, so that its server has ended too, a longer one is
  // started.
  absl::StatusOr<std::string> dropped = absl::OutOfRangeError("");
  for (uint64_t steps = kSteps; absl::IsOutOfRange(dropped.status()) && steps < kEndless;
       steps *= 8) {
    ASSERT_NO_FATAL_FAILURE(
        Start(1, {"--lease=10s", "--heartbeat_interval=200ms", "--exit_when_done"}, 2, steps));
    workers_[1]->Kill(SIGSTOP);
    dropped = cluster_->server(0).WaitForLine("is dropped", kLongEnough);
  }
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_THAT(*dropped, HasSubstr("worker \"worker-1\""));
  EXPECT_EQ(WaitFor(*workers_[0]), ExitCode(0)) << workers_[0]->output();
  ExpectServersToEnd(1);
}

}  // namespace
}  // namespace syncgrads::testing
