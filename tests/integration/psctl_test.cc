// psctl on running jobs. Checkpoints are asked for in checkpoint_run_test.

#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;

Finished Psctl(const std::vector<std::string>& args) {
  const auto finished = RunProgram({.program = "client/psctl/psctl", .args = args}, kLongEnough);
  EXPECT_TRUE(finished.ok()) << finished.status();
  return finished.value_or(Finished{});
}

class PsctlTest : public ::testing::Test {
 protected:
  void Start(const std::string& more) {
    const std::string job = WriteTemporaryFile(
        "psctl.job", absl::StrCat("name: \"ctl\" seed: 7 batch_size: 8 workers: 2 steps: 1000000 "
                                  "data { generated { rows: 300 seed: 1 } } optimizer { sgd {} }\n"
                                  "model { layers { dense { outputs: 1 } } }\n"
                                  "loss { sigmoid_cross_entropy {} } ",
                                  more));
    for (int rank = 0; rank < 2; ++rank) {
      workers_.push_back(
          cluster_.StartWorker(job, rank, 2, {absl::StrCat("--name=worker-", rank)}));
    }
    // The first line of a worker that trains.
    ASSERT_TRUE(workers_[0]->WaitForLine("ctl: 300 rows", kLongEnough).ok());
  }
  Finished At(int server, std::vector<std::string> args) const {
    args.push_back(absl::StrCat("--server=", cluster_.address(server)));
    return Psctl(args);
  }

  Cluster cluster_{2, {"--lease=10m", "--stall_warning=200ms"}};
  std::vector<std::unique_ptr<Process>> workers_;
};

TEST_F(PsctlTest, SaysWhatThereIs) {
  Start("");
  const Finished status = At(0, {"status"});
  EXPECT_EQ(status.exit, ExitCode(0)) << status.output;
  EXPECT_THAT(status.output, HasSubstr("server 0, "));
  EXPECT_THAT(status.output, HasSubstr("epoch 1 of 2 workers: worker-0, worker-1"));
  EXPECT_THAT(status.output, HasSubstr("\"model\": "));
  EXPECT_THAT(status.output, HasSubstr("checkpoints: 0 written; 0 failed"));
  EXPECT_THAT(At(1, {"status"}).output, HasSubstr("server 1, "));
}

TEST_F(PsctlTest, SaysWhomAStepWaitsFor) {
  Start("");
  workers_[1]->Kill(SIGSTOP);
  const absl::Time deadline = absl::Now() + kLongEnough;
  std::string waits;
  while (!absl::StrContains(waits, "\"worker-1\"") && absl::Now() < deadline) {
    waits = At(0, {"waits", "--job=ctl"}).output + At(1, {"waits", "--job=ctl"}).output;
  }
  EXPECT_THAT(waits, HasSubstr("for worker \"worker-1\""));
  workers_[1]->Kill(SIGKILL);
}

TEST_F(PsctlTest, DropsAWorkerWhichIsToldWhy) {
  Start("elastic {}");
  const Finished evicted = At(0, {"evict", "worker-1", "its disk fails", "--job=ctl"});
  EXPECT_EQ(evicted.exit, ExitCode(0)) << evicted.output;
  EXPECT_NE(WaitFor(*workers_[1]), ExitCode(0));
  EXPECT_THAT(workers_[1]->output(), HasSubstr("its disk fails"));
  EXPECT_THAT(At(0, {"status"}).output, HasSubstr("of 1 workers: worker-0"));
}

TEST_F(PsctlTest, AnErrorIsTheServersAndHasACode) {
  Start("");
  const auto expect = [](const Finished& finished, int code, const std::string& text) {
    EXPECT_EQ(finished.exit, ExitCode(code)) << finished.output;
    EXPECT_THAT(finished.output, HasSubstr(text));
  };
  expect(At(0, {"checkpoint", "--job=other"}), 1, "\"other\"");
  expect(At(1, {"evict", "worker-1", "--job=ctl"}), 1, "not the coordinator");
  expect(At(0, {"evict", "worker-9", "--job=ctl"}), 1, "worker-9");
  expect(At(0, {"waits", "--job=ctl", "--token=guessed"}), 1, "token");
  expect(At(0, {"waits"}), 2, "--job is missing");
  expect(At(0, {"evict", "--job=ctl"}), 2, "which worker?");
  expect(At(0, {"dance"}), 2, "\"dance\" is no command");
  expect(Psctl({"status", "--server=127.0.0.1:1", "--timeout=300ms"}), 128, "127.0.0.1:1");
}

}  // namespace
}  // namespace syncgrads::testing
