// A worker is killed in the middle of a run: the others finish, and the server reports which worker
// it waited for.

#include <signal.h>

#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;

// Enough steps for a kill in the middle.
constexpr uint64_t kSteps = 4000;
constexpr char kEarlyProgress[] = "--log_every=20";

class DeathTest : public ::testing::Test {
 protected:
  void StartWorkers(int world_size, const std::vector<std::string>& flags = {}) {
    const std::string job = WriteLongJob("long", kSteps);
    for (int rank = 0; rank < world_size; ++rank) {
      std::vector<std::string> all = {absl::StrCat("--name=worker-", rank), kEarlyProgress};
      all.insert(all.end(), flags.begin(), flags.end());
      workers_.push_back(cluster_.StartWorker(job, rank, world_size, all));
    }
    // Only worker 0 prints its progress.
    const auto line = workers_[0]->WaitForLine(absl::StrCat("/", kSteps), kLongEnough);
    ASSERT_TRUE(line.ok()) << line.status();
  }

  Cluster cluster_{2, {"--stall_warning=500ms", "--stream_grace=3s", "--exit_when_done"}};
  std::vector<std::unique_ptr<Process>> workers_;
};

TEST_F(DeathTest, TheOthersFinishWhenOneIsKilled) {
  StartWorkers(3);
  workers_[2]->Kill(SIGKILL);
  EXPECT_EQ(WaitFor(*workers_[2]), KilledBy(SIGKILL));
  EXPECT_EQ(WaitFor(*workers_[0]), ExitCode(0)) << workers_[0]->output();
  EXPECT_EQ(WaitFor(*workers_[1]), ExitCode(0)) << workers_[1]->output();
  for (int server : {0, 1}) {
    EXPECT_EQ(WaitFor(cluster_.server(server)), ExitCode(0)) << cluster_.server(server).output();
  }
}

TEST_F(DeathTest, TheServerNamesTheWorkerTheStepAndTheTimeWaited) {
  StartWorkers(3);
  workers_[2]->Kill(SIGKILL);
  // On a busy machine, earlier lines may name workers that were only slow.
  const auto stalled = cluster_.server(0).WaitForLine("s for worker \"worker-2\"", kLongEnough);
  ASSERT_TRUE(stalled.ok()) << stalled.status();
  EXPECT_TRUE(std::regex_search(
      *stalled, std::regex("step [0-9]+ .*has waited [0-9.]+s for worker \"worker-2\"")))
      << *stalled;
  const auto dropped = cluster_.server(0).WaitForLine("is dropped", kLongEnough);
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_THAT(*dropped, HasSubstr("worker \"worker-2\""));
}

TEST_F(DeathTest, AWorkerThatIsStoppedIsDroppedAfterItsLease) {
  Cluster cluster(1, {"--lease=5s", "--heartbeat_interval=200ms", "--exit_when_done"});
  const std::string job = WriteLongJob("stopped", kSteps);
  for (int rank = 0; rank < 2; ++rank) {
    workers_.push_back(
        cluster.StartWorker(job, rank, 2, {absl::StrCat("--name=worker-", rank), kEarlyProgress}));
  }
  ASSERT_TRUE(workers_[0]->WaitForLine(absl::StrCat("/", kSteps), kLongEnough).ok());
  workers_[1]->Kill(SIGSTOP);
  const auto dropped = cluster.server(0).WaitForLine("is dropped", kLongEnough);
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_THAT(*dropped, HasSubstr("worker \"worker-1\""));
  EXPECT_EQ(WaitFor(*workers_[0]), ExitCode(0)) << workers_[0]->output();
  EXPECT_EQ(WaitFor(cluster.server(0)), ExitCode(0)) << cluster.server(0).output();
}

}  // namespace
}  // namespace syncgrads::testing
