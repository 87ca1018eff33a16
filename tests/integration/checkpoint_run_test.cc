// Checkpoints of whole runs: on request, when workers are told to stop, after so many
// seconds, at the end, and on a disk that is full. Real programs.

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kWorkers = 3;
constexpr char kLaunch[] = "worker/launch/ps-launch";
constexpr char kPsctl[] = "client/psctl/psctl";

class CheckpointRunTest : public ::testing::Test {
 protected:
  // The Iris job with checkpoints in an empty directory of the test's own.
  std::string WriteJob(const std::function<void(v1::JobFile&)>& change = [](v1::JobFile&) {}) {
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    directory_ = TemporaryPath(absl::StrCat(name, "-checkpoints"));
    std::filesystem::remove_all(directory_);
    return WriteIrisJob("checkpoints", [&](v1::JobFile& job) {
      job.set_epochs(600);  // 3000 steps
      job.mutable_checkpoint()->set_directory(directory_);
      change(job);
    });
  }

  void Start(const Cluster& cluster, const std::string& job) {
    for (int rank = 0; rank < kWorkers; ++rank) {
      workers_.push_back(
          cluster.StartWorker(job, rank, kWorkers, {absl::StrCat("--name=worker-", rank)}));
    }
    ASSERT_TRUE(workers_[0]->WaitForLine("step ", kLongEnough).ok());
  }
  void KillAll() {
    for (const auto& worker : workers_) worker->Kill(SIGKILL);
    for (const auto& worker : workers_) WaitFor(*worker);
    workers_.clear();
  }

  static Finished Psctl(const Cluster& cluster, std::vector<std::string> words) {
    words.push_back(absl::StrCat("--server=", cluster.coordinator()));
    words.push_back("--job=checkpoints");
    const auto finished = RunProgram({.program = kPsctl, .args = std::move(words)}, kLongEnough);
    EXPECT_TRUE(finished.ok()) << finished.status();
    return finished.value_or(Finished{});
  }
  // Waits until the status matches.
  static std::string AwaitStatus(const Cluster& cluster, const std::string& pattern) {
    const absl::Time deadline = absl::Now() + kLongEnough;
    while (true) {
      const std::string status = Psctl(cluster, {"status"}).output;
      if (std::regex_search(status, std::regex(pattern))) return status;
      if (absl::Now() > deadline) {
        ADD_FAILURE() << "no " << pattern << " in " << status;
        return status;
      }
    }
  }

  std::string directory_;
  std::vector<std::unique_ptr<Process>> workers_;
};

TEST_F(CheckpointRunTest, OneThatIsAskedForIsWrittenAndTheRunGoesOnFromItBitForBit) {
  std::vector<std::string> undisturbed;
  {
    const Cluster cluster(2);
    undisturbed = TrainOn(cluster, WriteJob(), kWorkers);
  }
  const std::string job = WriteJob();
  {
    const Cluster cluster(2);
    Start(cluster, job);
    const Finished asked = Psctl(cluster, {"checkpoint"});
    KillAll();
    EXPECT_EQ(asked.exit, ExitCode(0)) << asked.output;
    EXPECT_THAT(asked.output, HasSubstr("3 workers have been asked"));
    EXPECT_THAT(asked.output, HasSubstr(directory_));
  }
  const Cluster cluster(3);
  EXPECT_EQ(TrainOn(cluster, job, kWorkers, {"--resume"}), undisturbed);
}

TEST_F(CheckpointRunTest, WhatIsToldToStopKeepsItsLastStepAndTheLauncherResumesIt) {
  std::vector<std::string> undisturbed;
  {
    const Cluster cluster(2);
    undisturbed = TrainOn(cluster, WriteJob(), kWorkers);
  }
  const std::string job = WriteJob();
  const std::string output = TemporaryPath("resumed.safetensors");
  const auto launch = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> args = {absl::StrCat("--job=", job), "--servers=2", "--workers=3",
                                     "--server_program=server/ps-server",
                                     "--worker_program=worker/ps-worker"};
    args.insert(args.end(), flags.begin(), flags.end());
    args.insert(args.end(), {"--", absl::StrCat("--output=", output)});
    return Process::Start({.program = kLaunch, .args = args});
  };
  const auto first = launch({});
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE((*first)->WaitForLine("step ", kLongEnough).ok());
  (*first)->Kill(SIGTERM);
  EXPECT_EQ(WaitFor(**first), ExitCode(128 + SIGTERM)) << (*first)->output();
  EXPECT_THAT((*first)->output(), HasSubstr("checkpoint after step "));

  const auto second = launch({"--resume"});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(WaitFor(**second), ExitCode(0)) << (*second)->output();
  EXPECT_THAT((*second)->output(), HasSubstr("goes on after step "));
  EXPECT_TRUE(ReadFileOrDie(output) == undisturbed[0]);
  // There is one of the last step, and so nothing is left to do.
  EXPECT_THAT((*second)->output(), HasSubstr("checkpoint after step 3000: "));
  const auto third = launch({"--resume"});
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_EQ(WaitFor(**third), ExitCode(0)) << (*third)->output();
  EXPECT_THAT((*third)->output(), HasSubstr("goes on after step 3000"));
  EXPECT_TRUE(ReadFileOrDie(output) == undisturbed[0]);
}

TEST_F(CheckpointRunTest, AnElasticJobIsResumedByFewerWorkersFromWhereOneLeft) {
  const std::string job = WriteJob([](v1::JobFile& file) {
    file.mutable_elastic();
    file.mutable_data()->set_mode(v1::DataSpec::DEALT);
    file.mutable_data()->clear_shards();
  });
  {
    const Cluster cluster(2);
    Start(cluster, job);
    workers_[2]->Kill(SIGTERM);
    EXPECT_EQ(WaitFor(*workers_[2]), ExitCode(143)) << workers_[2]->output();
    const auto kept = workers_[0]->WaitForLine("checkpoint after step ", kLongEnough);
    EXPECT_TRUE(kept.ok()) << kept.status();
    KillAll();
  }
  const Cluster cluster(2);
  std::vector<std::unique_ptr<Process>> two;
  for (int rank = 0; rank < 2; ++rank) {
    two.push_back(cluster.StartWorker(job, rank, 2, {"--resume"}));
  }
  for (const auto& worker : two) EXPECT_EQ(WaitFor(*worker), ExitCode(0)) << worker->output();
  EXPECT_THAT(two[0]->output(), HasSubstr("goes on after step "));
  EXPECT_THAT(two[0]->output(), HasSubstr("the 2 replicas are bit-identical"));
}

TEST_F(CheckpointRunTest, OneIsWrittenEverySoManySeconds) {
  const std::string job = WriteJob([](v1::JobFile& file) {
    file.set_epochs(1'000'000);
    file.mutable_checkpoint()->set_every_s(1);
  });
  const Cluster cluster(1);
  Start(cluster, job);
  AwaitStatus(cluster, "checkpoints: ([2-9]|[0-9]{2,}) written");
  KillAll();
}

// How a program gets a mount of its own here; empty if it cannot.
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
  const std::string job = WriteJob([](v1::JobFile& file) {
    file.set_epochs(1'000'000);
    file.mutable_checkpoint()->set_every_steps(200);
  });
  std::filesystem::create_directories(directory_);
  Cluster cluster(1);
  // The directory is a file system of 64 kB in each worker, and 60 kB are in use.
  const auto worker = Process::Start(
      {.program = unshare[0],
       .args = {unshare[1], "sh", "-c",
                "mount -t tmpfs -o size=64k none \"$0\" && "
                "head -c 60000 /dev/zero > \"$0/filler\" && exec \"$@\"",
                directory_, "worker/ps-worker", absl::StrCat("--job=", job),
                absl::StrCat("--server=", cluster.coordinator()), "--rank=0", "--world_size=1"}});
  ASSERT_TRUE(worker.ok()) << worker.status();
  const std::string full = AwaitStatus(cluster, "[2-9][0-9]* failed");
  EXPECT_THAT(full, HasSubstr("0 written"));
  EXPECT_THAT(full, HasSubstr("No space left on device"));
  EXPECT_THAT((*worker)->output(), HasSubstr("NO CHECKPOINT after step 200: "));
  EXPECT_THAT(cluster.server(0).output(),
              HasSubstr("could not write the checkpoint after step 200"));

  // The worker's view of it.
  EXPECT_TRUE(std::filesystem::remove(
      absl::StrCat("/proc/", (*worker)->pid(), "/root", directory_, "/filler")));
  AwaitStatus(cluster, "checkpoints: [1-9][0-9]* written");
  (*worker)->Kill(SIGKILL);
  WaitFor(**worker);
}

}  // namespace
}  // namespace syncgrads::testing
