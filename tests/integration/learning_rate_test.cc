// An operator changes the learning rate of jobs while they run, with real programs. The reference
// is a job whose schedule changes the rate at the step that psctl has named.

#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/admin.pb.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kServers = 2;
constexpr int kWorkers = 3;
constexpr double kFactor = 0.1;

// With kWorkers workers.
constexpr int kStepsOfEpoch = 5;
constexpr int kEpochs = 12;

// Returns the step in: learning rate factor 0.1 from step 25 of group "model" on
int StepIn(const std::string& output) {
  std::smatch step;
  const std::regex line("learning rate factor 0\\.1 from step ([0-9]+) of group \"model\" on");
  const bool found = std::regex_search(output, step, line);
  EXPECT_TRUE(found) << output;
  return found ? std::stoi(step[1]) : 0;
}

// A named pipe as the progress log of a worker, to which the worker writes a line in each step.
// When the pipe is full, after about 15 steps, the worker is blocked.
class BlockedLog {
 public:
  BlockedLog() {
    std::filesystem::remove(path_);
    EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0) << path_;
    pipe_ = open(path_.c_str(), O_RDWR | O_CLOEXEC);
    EXPECT_EQ(fcntl(pipe_, F_SETPIPE_SZ, 4096), 4096);
  }
  // The worker has ended.
  ~BlockedLog() {
    close(pipe_);
    std::filesystem::remove(path_);
  }
  const std::string& path() const { return path_; }

  // Unblocks the worker: the pipe can have the lines of 200 steps.
  void Widen() { EXPECT_EQ(fcntl(pipe_, F_SETPIPE_SZ, 1 << 16), 1 << 16); }

 private:
  const std::string path_ = TemporaryPath("progress.fifo");
  int pipe_ = -1;
};

class LearningRateTest : public ::testing::TestWithParam<v1::OptimizerPlacement> {
 protected:
  // Writes the Iris job file, with chunks on both servers.
  std::string WriteJob(
      v1::OptimizerPlacement place,
      const std::function<void(v1::JobFile&)>& change = [](v1::JobFile&) {}) {
    return WriteIrisJob("learning_rate", [&](v1::JobFile& job) {
      job.set_epochs(kEpochs);
      job.set_chunk_bytes(128);
      job.set_optimizer_placement(place);
      change(job);
    });
  }
  // Returns the parameters of a run that is not disturbed. Its schedule multiplies the rate by
  // kFactor from `step` on.
  std::string Reference(int step) {
    const std::string job = WriteJob(v1::WORKERS, [step](v1::JobFile& file) {
      v1::LearningRateSchedule::Step& schedule = *file.mutable_schedule()->mutable_step();
      // Steps of a schedule count from 0.
      schedule.add_milestones(step - 1);
      schedule.set_factor(kFactor);
    });
    return TrainOn(Cluster(1), job, kWorkers).at(0);
  }

  // Starts the workers, and waits for their first step. The job cannot end before Continue: worker
  // 2 is blocked after some steps, and the others wait for it.
  void Start(const std::string& job) {
    for (int rank = 0; rank < kWorkers; ++rank) {
      std::filesystem::remove(OutputOf(rank));
      std::vector<std::string> flags = {absl::StrCat("--name=worker-", rank), "--output_per_rank",
                                        absl::StrCat("--output=", OutputPath()), "--log_every=1"};
      if (rank == 2) flags.push_back(absl::StrCat("--progress_log=", log_.path()));
      workers_.push_back(cluster_.StartWorker(job, rank, kWorkers, flags));
    }
    ASSERT_TRUE(workers_[0]->WaitForLine("step ", kLongEnough).ok());
  }
  void Continue() { log_.Widen(); }
  // Waits for all workers, and returns their parameters.
  std::vector<std::string> Finish() {
    std::vector<std::string> outputs;
    for (int rank = 0; rank < kWorkers; ++rank) {
      EXPECT_EQ(WaitFor(*workers_[rank]), ExitCode(0)) << workers_[rank]->output();
      outputs.push_back(ReadFileOrDie(OutputOf(rank)));
    }
    return outputs;
  }
  Finished Psctl(std::vector<std::string> args) {
    args.push_back(absl::StrCat("--server=", cluster_.coordinator()));
    const auto finished = RunProgram({.program = "client/psctl/psctl", .args = args}, kLongEnough);
    EXPECT_TRUE(finished.ok()) << finished.status();
    return finished.value_or(Finished{});
  }
  Finished Set(const std::string& factor, const std::string& timeout = "2m") {
    return Psctl({"--job=learning_rate", absl::StrCat("--timeout=", timeout), "set",
                  "learning-rate-factor", factor});
  }
  void Kill(int server) {
    cluster_.server(server).Kill(SIGKILL);
    EXPECT_EQ(WaitFor(cluster_.server(server)), KilledBy(SIGKILL));
  }

  static std::string OutputPath() { return TemporaryPath("learning_rate.safetensors"); }
  static std::string OutputOf(int rank) {
    return TemporaryPath(absl::StrCat("learning_rate.rank", rank, ".safetensors"));
  }

  Cluster cluster_{kServers, {"--lease=10m"}};
  BlockedLog log_;
  std::vector<std::unique_ptr<Process>> workers_;
};

INSTANTIATE_TEST_SUITE_P(Placements, LearningRateTest, ::testing::Values(v1::WORKERS, v1::SERVERS),
                         [](const auto& test) { return v1::OptimizerPlacement_Name(test.param); });

TEST_P(LearningRateTest, AllReplicasUseItFromTheStepOnThatPsctlNames) {
  Start(WriteJob(GetParam()));
  EXPECT_THAT(Psctl({"status"}).output, Not(HasSubstr("learning rate factor")));
  const Finished set = Set("0.1");
  EXPECT_EQ(set.exit, ExitCode(0)) << set.output;
  const int step = StepIn(set.output);
  EXPECT_EQ(StepIn(Psctl({"status"}).output), step);
  // To set it again changes nothing.
  EXPECT_EQ(StepIn(Set("0.1").output), step);
  const std::string events = Psctl({"--job=learning_rate", "events"}).output;
  EXPECT_THAT(events, HasSubstr("the learning rate factor is set to 0.1 (before: 1) by "));
  EXPECT_THAT(events, HasSubstr(absl::StrCat("is 0.1 from step ", step, " of group \"model\" on")));
  Continue();
  EXPECT_THAT(Finish(), Each(Reference(step)));
}

TEST_P(LearningRateTest, SurvivesTheDeathOfAllServers) {
  Start(WriteJob(GetParam()));
  const int step = StepIn(Set("0.1").output);
  for (int server = 0; server < kServers; ++server) Kill(server);
  for (int server = 0; server < kServers; ++server) cluster_.Restart(server);
  EXPECT_EQ(StepIn(Psctl({"status"}).output), step);
  Continue();
  EXPECT_THAT(Finish(), Each(Reference(step)));
}

// The request is stored, and no step can use it while a server is dead.
TEST_P(LearningRateTest, ARequestThatWaitsForAServerIsNotForgotten) {
  Start(WriteJob(GetParam()));
  Kill(1);
  const Finished set = Set("0.1", "1s");
  EXPECT_EQ(set.exit, ExitCode(128)) << set.output;
  EXPECT_THAT(set.output,
              AllOf(HasSubstr("is stored, but no step uses it yet"), HasSubstr("server 1 at ")));
  Kill(0);
  for (int server = 0; server < kServers; ++server) cluster_.Restart(server);
  const Finished again = Set("0.1");
  EXPECT_EQ(again.exit, ExitCode(0)) << again.output;
  Continue();
  EXPECT_THAT(Finish(), Each(Reference(StepIn(again.output))));
}

// The first run ends after the step that psctl has named, and leaves a checkpoint of its last step.
TEST_P(LearningRateTest, ARunThatIsResumedFromACheckpointKeepsIt) {
  constexpr int kEpochsBefore = 8;
  const std::string directory = TemporaryPath(absl::StrCat("checkpoints-", GetParam()));
  std::filesystem::remove_all(directory);
  const auto write = [&](int epochs) {
    return WriteJob(GetParam(), [&](v1::JobFile& file) {
      file.set_epochs(epochs);
      file.mutable_checkpoint()->set_directory(directory);
    });
  };
  Start(write(kEpochsBefore));
  const int step = StepIn(Set("0.1").output);
  ASSERT_LT(step, kEpochsBefore * kStepsOfEpoch);
  Continue();
  Finish();
  const std::vector<std::string> resumed =
      TrainOn(Cluster(1), write(kEpochs), kWorkers, {"--resume"});
  EXPECT_THAT(resumed, Each(Reference(step)));
}

TEST_F(LearningRateTest, PsctlRefusesWhatCannotBeSet) {
  const Finished unknown = Set("0.1");
  EXPECT_EQ(unknown.exit, ExitCode(1)) << unknown.output;
  EXPECT_THAT(unknown.output, HasSubstr("no job \"learning_rate\" is open here"));
  Start(WriteJob(v1::SERVERS));
  for (const char* factor : {"0", "nan", "inf", "1e7", "a tenth"}) {
    const Finished refused = Set(factor);
    EXPECT_EQ(refused.exit, ExitCode(2)) << factor << ": " << refused.output;
  }
  EXPECT_THAT(Set("0").output, HasSubstr("factor of 0, must be from 1e-06 to 1e+06"));
  EXPECT_THAT(Set("a tenth").output, HasSubstr("\"a tenth\" is not a number"));
  const Finished other = Psctl({"--job=learning_rate", "set", "batch-size", "3"});
  EXPECT_EQ(other.exit, ExitCode(2)) << other.output;
  EXPECT_THAT(other.output, HasSubstr("\"batch-size\" cannot be set: learning-rate-factor, "));
  for (const char* rate : {"0", "-1", "nan", "inf", "fast"}) {
    const Finished refused = Psctl({"--job=learning_rate", "set", "learning-rate", rate});
    EXPECT_EQ(refused.exit, ExitCode(2)) << rate << ": " << refused.output;
  }
  EXPECT_THAT(Psctl({"status"}).output, Not(HasSubstr("learning rate factor")));
  for (const auto& worker : workers_) worker->Kill(SIGKILL);
}

// Every worker of best_of makes steps of its own, so the job has no group with a learning rate.
TEST_F(LearningRateTest, PsctlRefusesAJobWhoseWorkersTrainAlone) {
  const std::string job = WriteJob(v1::WORKERS, [](v1::JobFile& file) {
    file.clear_chunk_bytes();
    file.mutable_data()->set_validation_every(5);
    file.mutable_consistency()->mutable_best_of()->set_steps(10);
  });
  Start(job);
  const Finished refused = Set("0.1");
  EXPECT_EQ(refused.exit, ExitCode(1)) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("has no group with a learning rate"));
  for (const auto& worker : workers_) worker->Kill(SIGKILL);
}

// Returns the learning rates that the members of the job have reported, by name.
std::map<std::string, double> RatesIn(const std::string& json) {
  std::map<std::string, double> rates;
  v1::ClusterStatus cluster;
  if (!google::protobuf::util::JsonStringToMessage(json, &cluster).ok()) return rates;
  for (const v1::ServerAnswer& server : cluster.servers()) {
    for (const v1::JobStatus& job : server.status().jobs()) {
      for (const v1::MemberStatus& member : job.members()) {
        if (!member.gone() && member.figures().has_learning_rate()) {
          rates[member.name()] = member.figures().learning_rate();
        }
      }
    }
  }
  return rates;
}

TEST_P(LearningRateTest, AWorkerThatComesBackToAnElasticJobHasIt) {
  const std::string job = WriteTemporaryFile(
      "elastic_rate.job",
      absl::StrCat("name: \"learning_rate\" seed: 7 batch_size: 8 steps: 1000000 workers: 3\n"
                   "optimizer { momentum { learning_rate: 0.5 } } elastic {}\n"
                   "data { generated { rows: 400 seed: 1 } mode: DYNAMIC }\n"
                   "model { layers { dense { outputs: 1 } } } loss { sigmoid_cross_entropy {} }\n"
                   "optimizer_placement: ",
                   v1::OptimizerPlacement_Name(GetParam())));
  Cluster cluster(1, {"--lease=10m", "--stream_grace=100ms", "--heartbeat_interval=200ms"});
  for (int rank = 0; rank < kWorkers; ++rank) {
    workers_.push_back(
        cluster.StartWorker(job, rank, kWorkers, {absl::StrCat("--name=worker-", rank)}));
  }
  // A worker prints this line when it starts to train.
  ASSERT_TRUE(workers_[0]->WaitForLine("learning_rate: 400 rows", kLongEnough).ok());
  const std::vector<std::string> at = {absl::StrCat("--server=", cluster.coordinator()),
                                       "--job=learning_rate", "--timeout=2m"};
  const auto psctl = [&at](std::vector<std::string> args) {
    args.insert(args.end(), at.begin(), at.end());
    const auto finished = RunProgram({.program = "client/psctl/psctl", .args = args}, kLongEnough);
    EXPECT_TRUE(finished.ok()) << finished.status();
    return finished.value_or(Finished{});
  };
  // The job file has 0.5. The workers report it after their first steps.
  const absl::Time reported = absl::Now() + kLongEnough;
  Finished set = psctl({"set", "learning-rate", "0.25"});
  while (set.exit != ExitCode(0) && absl::Now() < reported) {
    EXPECT_THAT(set.output, HasSubstr("has reported its learning rate"));
    set = psctl({"set", "learning-rate", "0.25"});
  }
  EXPECT_EQ(set.exit, ExitCode(0)) << set.output;
  EXPECT_THAT(set.output, HasSubstr("learning rate 0.25: learning rate factor 0.5 from step "));
  // The rates that were reported before are no longer those of the job.
  set = psctl({"set", "learning-rate", "0.05", "-o", "json"});
  EXPECT_EQ(set.exit, ExitCode(0)) << set.output;
  EXPECT_THAT(set.output, HasSubstr("{\"factor\":0.1,\"learning_rate\":0.05,\"epoch\":"));
  workers_[2]->Kill(SIGKILL);
  EXPECT_EQ(WaitFor(*workers_[2]), KilledBy(SIGKILL));
  workers_[2] = cluster.StartWorker(job, 2, kWorkers, {"--name=worker-2"});
  const auto joined = cluster.server(0).WaitForLine("\"worker-2\" is up to date", kLongEnough);
  ASSERT_TRUE(joined.ok()) << joined.status();
  const std::map<std::string, double> expected = {
      {"worker-0", 0.05}, {"worker-1", 0.05}, {"worker-2", 0.05}};
  std::map<std::string, double> rates;
  const absl::Time deadline = absl::Now() + kLongEnough;
  while (rates != expected && absl::Now() < deadline) {
    rates = RatesIn(psctl({"status", "-o", "json"}).output);
  }
  EXPECT_EQ(rates, expected);
  for (const auto& worker : workers_) worker->Kill(SIGKILL);
}

}  // namespace
}  // namespace syncgrads::testing
