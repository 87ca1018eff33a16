// Tests of the checkpoints of whole runs with real programs: on request, when workers are requested
// to stop, at a time interval, at the end, and on a full disk.

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kWorkers = 3;
// A run with so many epochs does not end by itself, so a signal arrives in the middle of it.
constexpr int kEndless = 1'000'000;
constexpr int kStepsOfEpoch = 5;  // with kWorkers workers
// The number of epochs from a checkpoint to the end of the run that is resumed.
constexpr int kFurtherEpochs = 60;
constexpr char kLaunch[] = "worker/launch/ps-launch";
constexpr char kPsctl[] = "client/psctl/psctl";

class CheckpointRunTest : public ::testing::Test {
 protected:
  // Writes the Iris job file with checkpoints in an empty directory of this test.
  std::string WriteJob(
      int epochs, const std::function<void(v1::JobFile&)>& change = [](v1::JobFile&) {}) {
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    directory_ = TemporaryPath(absl::StrCat(name, "-checkpoints"));
    std::filesystem::remove_all(directory_);
    return WriteIrisJob("checkpoints", [&](v1::JobFile& job) {
      job.set_epochs(epochs);
      job.mutable_checkpoint()->set_directory(directory_);
      change(job);
    });
  }

  // Returns the step in a line such as "checkpoint after step 20: PATH", the first one in `output`.
  static int CheckpointIn(const std::string& output) {
    std::smatch step;
    const bool found =
        std::regex_search(output, step, std::regex("checkpoint after step ([0-9]+)"));
    EXPECT_TRUE(found) << output;
    return found ? std::stoi(step[1]) : 0;
  }
  // Changes the job file of an endless run: the run ends kFurtherEpochs after the epoch of `step`.
  // Returns the number of epochs.
  static int EndAfter(int step, const std::string& job) {
    const int epochs = step / kStepsOfEpoch + kFurtherEpochs;
    std::string text = ReadFileOrDie(job);
    EXPECT_EQ(absl::StrReplaceAll({{absl::StrCat("epochs: ", kEndless),  //
                                    absl::StrCat("epochs: ", epochs)}},
                                  &text),
              1);
    WriteTemporaryFile("checkpoints.job", text);
    return epochs;
  }

  void Start(const Cluster& cluster, const std::string& job,
             const std::vector<std::string>& further = {}) {
    for (int rank = 0; rank < kWorkers; ++rank) {
      std::vector<std::string> flags = {absl::StrCat("--name=worker-", rank), "--log_every=20"};
      flags.insert(flags.end(), further.begin(), further.end());
      workers_.push_back(cluster.StartWorker(job, rank, kWorkers, flags));
    }
    ASSERT_TRUE(workers_[0]->WaitForLine("step ", kLongEnough).ok());
  }
  void KillAll() {
    for (const auto& worker : workers_) worker->Kill(SIGKILL);
    for (const auto& worker : workers_) WaitFor(*worker);
    workers_.clear();
  }

  static ProcessOptions Psctl(const Cluster& cluster, const std::string& command) {
    return {.program = kPsctl,
            .args = {command, absl::StrCat("--server=", cluster.coordinator()), "--job=checkpoints",
                     "--timeout=2m"}};
  }
  // Waits until the output of `psctl status` matches `pattern`, and returns it.
  static std::string AwaitStatus(const Cluster& cluster, const std::string& pattern) {
    const absl::Time deadline = absl::Now() + kLongEnough;
    while (true) {
      const auto finished = RunProgram(Psctl(cluster, "status"), kLongEnough);
      EXPECT_TRUE(finished.ok()) << finished.status();
      const std::string status = finished.value_or(Finished{}).output;
      if (std::regex_search(status, std::regex(pattern))) return status;
      if (absl::Now() > deadline) {
        ADD_FAILURE() << "no " << pattern << " in " << status;
        return status;
      }
    }
  }
  // Waits until `step` is closed: every worker that takes part in it has contributed to it.
  static void AwaitClosed(const Cluster& cluster, int step) {
    const absl::Time deadline = absl::Now() + kLongEnough;
    for (int open = 0; open <= step;) {
      ASSERT_LT(absl::Now(), deadline) << "step " << step << " is not closed";
      const std::string status = AwaitStatus(cluster, "group \"model\": step [0-9]+ is open");
      std::smatch found;
      if (std::regex_search(status, found, std::regex("\"model\": step ([0-9]+) is open"))) {
        open = std::stoi(found[1]);
      }
    }
  }

  std::string directory_;
  std::vector<std::unique_ptr<Process>> workers_;
};

TEST_F(CheckpointRunTest, OneThatIsAskedForIsWrittenAndTheRunGoesOnFromItBitForBit) {
  const std::string job = WriteJob(kEndless);
  int step = 0;
  {
    const Cluster cluster(2);
    Start(cluster, job);
    const auto psctl = RunProgram(Psctl(cluster, "checkpoint"), kLongEnough);
    ASSERT_TRUE(psctl.ok()) << psctl.status();
    EXPECT_EQ(psctl->exit, ExitCode(0)) << psctl->output;
    EXPECT_THAT(psctl->output, HasSubstr("a checkpoint was requested from 3 workers"));
    EXPECT_THAT(psctl->output, HasSubstr(directory_));
    const auto kept = workers_[0]->WaitForLine("checkpoint after step ", kLongEnough);
    ASSERT_TRUE(kept.ok()) << kept.status();
    step = CheckpointIn(*kept);
    KillAll();
  }
  const int epochs = EndAfter(step, job);
  const std::vector<std::string> resumed = TrainOn(Cluster(3), job, kWorkers, {"--resume"});
  EXPECT_EQ(resumed, TrainOn(Cluster(2), WriteJob(epochs), kWorkers));
}

TEST_F(CheckpointRunTest, WhatIsToldToStopKeepsItsLastStepAndTheLauncherResumesIt) {
  const std::string job = WriteJob(kEndless);
  const std::string output = TemporaryPath("resumed.safetensors");
  const auto launch = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> args = {absl::StrCat("--job=", job), "--servers=2", "--workers=3",
                                     "--server_program=server/ps-server",
                                     "--worker_program=worker/ps-worker",
                                     // After the signal, the workers have as long as they need.
                                     "--grace=2m", "--server_args=--drain_timeout=2m"};
    args.insert(args.end(), flags.begin(), flags.end());
    args.insert(args.end(),
                {"--", absl::StrCat("--output=", output), "--log_every=20", "--stop_grace=2m"});
    return Process::Start({.program = kLaunch, .args = args});
  };
  const auto first = launch({});
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE((*first)->WaitForLine("step ", kLongEnough).ok());
  (*first)->Kill(SIGTERM);
  EXPECT_EQ(WaitFor(**first), ExitCode(128 + SIGTERM)) << (*first)->output();
  const int step = CheckpointIn((*first)->output());

  const int epochs = EndAfter(step, job);
  const int last = kStepsOfEpoch * epochs;
  const auto second = launch({"--resume"});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(WaitFor(**second), ExitCode(0)) << (*second)->output();
  EXPECT_THAT((*second)->output(), HasSubstr(absl::StrCat("resuming after step ", step)));
  const std::string resumed = ReadFileOrDie(output);
  // There is a checkpoint of the last step, so a third run has nothing left to do.
  EXPECT_THAT((*second)->output(), HasSubstr(absl::StrCat("checkpoint after step ", last, ": ")));
  const auto third = launch({"--resume"});
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_EQ(WaitFor(**third), ExitCode(0)) << (*third)->output();
  EXPECT_THAT((*third)->output(), HasSubstr(absl::StrCat("resuming after step ", last)));
  const std::vector<std::string> undisturbed = TrainOn(Cluster(2), WriteJob(epochs), kWorkers);
  EXPECT_TRUE(resumed == undisturbed[0]);
  EXPECT_TRUE(ReadFileOrDie(output) == undisturbed[0]);
}

// A scheduler sends SIGUSR1 or SIGTERM to servers and workers, and not to all at the same moment.
TEST_F(CheckpointRunTest, Sigusr1StopsServersAndWorkersAndTheRunIsResumedBitForBit) {
  const std::string job = WriteJob(kEndless);
  int step = 0;
  {
    Cluster cluster(2, {"--drain_timeout=2m"});
    Start(cluster, job, {"--stop_grace=2m"});
    for (int index : {0, 1}) cluster.server(index).Kill(SIGUSR1);
    workers_[0]->Kill(SIGUSR1);
    EXPECT_EQ(WaitFor(*workers_[0]), ExitCode(143)) << workers_[0]->output();
    step = CheckpointIn(workers_[0]->output());
    // A worker that is stopped right after the step of the checkpoint does not report other stopped
    // workers. After the next step, it has detected that worker 0 does not contribute any more.
    AwaitClosed(cluster, step + 1);
    for (int rank : {1, 2}) workers_[rank]->Kill(SIGUSR1);
    for (int rank : {1, 2}) {
      EXPECT_EQ(WaitFor(*workers_[rank]), ExitCode(143)) << workers_[rank]->output();
      EXPECT_THAT(workers_[rank]->output(),
                  HasSubstr(absl::StrCat("another worker was stopped after step ", step, ",")));
    }
    for (int index : {1, 0}) {
      EXPECT_EQ(WaitFor(cluster.server(index)), ExitCode(0)) << cluster.server(index).output();
    }
    workers_.clear();
  }
  const int epochs = EndAfter(step, job);
  const std::vector<std::string> resumed = TrainOn(Cluster(2), job, kWorkers, {"--resume"});
  EXPECT_EQ(resumed, TrainOn(Cluster(2), WriteJob(epochs), kWorkers));
}

TEST_F(CheckpointRunTest, AnElasticJobIsResumedByFewerWorkersFromWhereOneLeft) {
  const std::string job = WriteJob(kEndless, [](v1::JobFile& file) {
    file.mutable_elastic();
    file.mutable_data()->set_mode(v1::DataSpec::DYNAMIC);
    file.mutable_data()->clear_shards();
  });
  int step = 0;
  {
    const Cluster cluster(2);
    Start(cluster, job);
    workers_[2]->Kill(SIGTERM);
    EXPECT_EQ(WaitFor(*workers_[2]), ExitCode(143)) << workers_[2]->output();
    const auto kept = workers_[0]->WaitForLine("checkpoint after step ", kLongEnough);
    ASSERT_TRUE(kept.ok()) << kept.status();
    step = CheckpointIn(*kept);
    KillAll();
  }
  EndAfter(step, job);
  const Cluster cluster(2);
  std::vector<std::unique_ptr<Process>> two;
  for (int rank = 0; rank < 2; ++rank) {
    two.push_back(cluster.StartWorker(job, rank, 2, {"--resume"}));
  }
  for (const auto& worker : two) EXPECT_EQ(WaitFor(*worker), ExitCode(0)) << worker->output();
  EXPECT_THAT(two[0]->output(), HasSubstr(absl::StrCat("resuming after step ", step)));
  EXPECT_THAT(two[0]->output(), HasSubstr("the 2 replicas are bit-identical"));
}

TEST_F(CheckpointRunTest, OneIsWrittenEverySoManySeconds) {
  const std::string job =
      WriteJob(kEndless, [](v1::JobFile& file) { file.mutable_checkpoint()->set_every_s(1); });
  const Cluster cluster(1);
  Start(cluster, job);
  AwaitStatus(cluster, "checkpoints: ([2-9]|[0-9]{2,}) written");
  KillAll();
}

TEST_F(CheckpointRunTest, IfItsFilesAreLongerThanTheLimitTrainingContinues) {
  const std::string job = WriteJob(
      kEndless, [](v1::JobFile& file) { file.mutable_checkpoint()->set_every_steps(200); });
  const Cluster cluster(1);
  Start(cluster, job);
  for (const auto& worker : workers_) {
    const rlimit limit = {64, 64};
    ASSERT_EQ(prlimit(worker->pid(), RLIMIT_FSIZE, &limit, nullptr), 0);
  }
  AwaitStatus(cluster, "([2-9]|[0-9]{2,}) failed, the last: .*File too large");
  KillAll();
}

// Returns the command prefix that runs a program in a mount namespace of its own; empty if this
// machine does not allow that.
std::vector<std::string> FindUnshare() {
  for (const std::string flags : {"-Urm", "-m"}) {
    const auto tried = RunProgram(
        {.program = "unshare",
         .args = {flags, "mount", "-t", "tmpfs", "-o", "size=64k", "none", ::testing::TempDir()}},
        kLongEnough);
    if (tried.ok() && tried->exit == ExitCode(0)) return {"unshare", flags};
  }
  return {};
}

TEST_F(CheckpointRunTest, OnAFullDiskTrainingGoesOnAndIsHeardOfUntilThereIsRoom) {
  const std::vector<std::string> unshare = FindUnshare();
  if (unshare.empty()) GTEST_SKIP() << "this user may not mount a small file system";
  const std::string job = WriteJob(
      kEndless, [](v1::JobFile& file) { file.mutable_checkpoint()->set_every_steps(200); });
  std::filesystem::create_directories(directory_);
  Cluster cluster(1);
  // In the worker's mount namespace the directory is a file system of 64 kB, of which 60 kB are in
  // use.
  const auto worker = Process::Start(
      {.program = unshare[0],
       .args = {unshare[1], "sh", "-c",
                "mount -t tmpfs -o size=64k none \"$0\" && "
                "head -c 60000 /dev/zero > \"$0/filler\" && exec \"$@\"",
                directory_, "worker/ps-worker", absl::StrCat("--job=", job),
                absl::StrCat("--server=", cluster.coordinator()), "--rank=0", "--world_size=1"}});
  ASSERT_TRUE(worker.ok()) << worker.status();
  // A checkpoint that is due while the one before is still being written fails as well, with
  // another message.
  AwaitStatus(cluster,
              "checkpoints: 0 written; ([2-9]|[0-9]{2,}) failed, the last: .*No space left on "
              "device");
  // The coordinator counts a checkpoint before the lines about it have been read from the pipes.
  const auto noted = (*worker)->WaitForLine("checkpoint not written after step 200: ", kLongEnough);
  EXPECT_TRUE(noted.ok()) << noted.status();
  const auto logged =
      cluster.server(0).WaitForLine("could not write the checkpoint after step 200", kLongEnough);
  EXPECT_TRUE(logged.ok()) << logged.status();

  // /proc/PID/root is the directory tree in the worker's mount namespace.
  EXPECT_TRUE(std::filesystem::remove(
      absl::StrCat("/proc/", (*worker)->pid(), "/root", directory_, "/filler")));
  AwaitStatus(cluster, "checkpoints: [1-9][0-9]* written");
  (*worker)->Kill(SIGKILL);
  WaitFor(**worker);
}

}  // namespace
}  // namespace syncgrads::testing
