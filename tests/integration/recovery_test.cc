// Servers are killed in the middle of a run and restarted with the same arguments. The workers go
// on and end with the parameters of an undisturbed run.

#include <grpcpp/create_channel.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
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
constexpr absl::Duration kPoll = absl::Milliseconds(2);

// Writes an Iris job file that is long enough to be disturbed and has chunks on both servers.
std::string WriteJob(const std::string& name, v1::OptimizerPlacement place) {
  return WriteIrisJob(name, [place](v1::JobFile& job) {
    job.set_epochs(300);
    job.set_chunk_bytes(128);
    job.set_optimizer_placement(place);
  });
}

// Writes a job file like WriteJob, with a layer so wide that its results are sent through shared
// memory.
std::string WriteWideJob(const std::string& name, v1::OptimizerPlacement place) {
  return WriteIrisJob(name, [place](v1::JobFile& job) {
    job.set_epochs(150);
    job.set_chunk_bytes(16 << 10);
    job.set_optimizer_placement(place);
    job.mutable_model()->mutable_layers(1)->mutable_dense()->set_outputs(2000);
  });
}

// Returns the sum of a server's open rounds over all groups; nullopt if it does not answer.
std::optional<uint64_t> Progress(const std::string& address) {
  const auto stub =
      v1::Admin::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(1)));
  v1::GetStatusReply reply;
  if (!stub->GetStatus(&context, {}, &reply).ok()) return std::nullopt;
  uint64_t rounds = 0;
  for (const v1::JobStatus& job : reply.jobs()) {
    for (const v1::GroupStatus& group : job.groups()) rounds += group.open_round();
  }
  return rounds;
}

// A job whose servers the test kills and restarts while it runs.
class DisturbedJob {
 public:
  explicit DisturbedJob(const std::string& job, const std::vector<std::string>& server_flags = {}) {
    std::vector<std::string> flags = {"--exit_when_done"};
    flags.insert(flags.end(), server_flags.begin(), server_flags.end());
    cluster_ = std::make_unique<Cluster>(kServers, flags);
    for (int rank = 0; rank < kWorkers; ++rank) {
      std::filesystem::remove(OutputOf(rank));
      workers_.push_back(cluster_->StartWorker(
          job, rank, kWorkers,
          {absl::StrCat("--output=", TemporaryPath("recovery.safetensors")), "--output_per_rank"}));
    }
  }

  Cluster& cluster() { return *cluster_; }
  Process& worker(int rank) { return *workers_[rank]; }

  // Waits until Progress of server 0 exceeds `beyond`. Returns false if the job has finished first.
  bool AwaitProgress(uint64_t beyond) {
    while (absl::Now() < deadline_) {
      const std::optional<uint64_t> progress = Progress(cluster_->coordinator());
      if (progress.value_or(0) > beyond) return true;
      if (workers_[0]->Wait(absl::ZeroDuration()).ok()) return false;
      absl::SleepFor(kPoll);
    }
    ADD_FAILURE() << "no round has closed:\n" << Outputs();
    return false;
  }

  // Kills the servers `which` at the same time and restarts them. Returns how long it took until
  // the first server of `which` closed a round again, and how much of that time the restarts took.
  // Returns nullopt if the job finished first.
  struct Outage {
    absl::Duration total;
    absl::Duration restart;
  };
  std::optional<Outage> KillAndRestart(const std::vector<int>& which) {
    const absl::Time killed = absl::Now();
    for (int server : which) cluster_->server(server).Kill(SIGKILL);
    for (int server : which) {
      const Exit exit = WaitFor(cluster_->server(server));
      // The server had finished the job and exited before the kill.
      if (exit == ExitCode(0)) ended_.push_back(server);
    }
    for (int server : which) {
      if (std::find(ended_.begin(), ended_.end(), server) == ended_.end()) {
        cluster_->Restart(server);
      }
    }
    const absl::Time restarted = absl::Now();
    if (!ended_.empty()) return std::nullopt;
    // The first status after the restart includes the rounds that were closed before.
    std::optional<uint64_t> before;
    while (absl::Now() < deadline_) {
      const std::optional<uint64_t> progress = Progress(cluster_->address(which[0]));
      if (!before.has_value()) before = progress;
      if (progress > before) return Outage{absl::Now() - killed, restarted - killed};
      if (workers_[0]->Wait(absl::ZeroDuration()).ok()) return std::nullopt;
      absl::SleepFor(kPoll);
    }
    ADD_FAILURE() << "no round has closed since the restart:\n" << Outputs();
    return std::nullopt;
  }

  // Waits for all programs, which must succeed. Returns the workers' parameters.
  std::vector<std::string> Finish() {
    std::vector<std::string> outputs;
    for (int rank = 0; rank < kWorkers; ++rank) {
      EXPECT_EQ(WaitFor(*workers_[rank]), ExitCode(0)) << Outputs();
      outputs.push_back(ReadFileOrDie(OutputOf(rank)));
    }
    for (int server = 0; server < kServers; ++server) {
      EXPECT_EQ(WaitFor(cluster_->server(server)), ExitCode(0)) << Outputs();
    }
    return outputs;
  }

  std::string Outputs() const {
    std::string all;
    for (int server = 0; server < kServers; ++server) {
      absl::StrAppend(&all, "server ", server, ":\n", cluster_->server(server).output());
    }
    for (int rank = 0; rank < kWorkers; ++rank) {
      absl::StrAppend(&all, "worker ", rank, ":\n", workers_[rank]->output());
    }
    return all;
  }

 private:
  static std::string OutputOf(int rank) {
    return TemporaryPath(absl::StrCat("recovery.rank", rank, ".safetensors"));
  }

  const absl::Time deadline_ = absl::Now() + kLongEnough;
  std::unique_ptr<Cluster> cluster_;
  std::vector<std::unique_ptr<Process>> workers_;
  std::vector<int> ended_;
};

class RecoveryTest : public ::testing::TestWithParam<v1::OptimizerPlacement> {
 protected:
  // Kills random servers of `victims` at random instants, in `runs` runs, and compares the results
  // to those of an undisturbed run. The seed is printed.
  void KillAtManyInstants(const std::string& job, const std::vector<std::vector<int>>& victims,
                          int runs) {
    const std::vector<std::string> undisturbed = DisturbedJob(job).Finish();
    const uint64_t seed = std::random_device()();
    std::cerr << "seed " << seed << std::endl;
    std::mt19937_64 random(seed);
    std::vector<absl::Duration> outages;
    int kills = 0;
    for (int number = 0; number < runs; ++number) {
      DisturbedJob run(job);
      // Kills happen at random times, in some runs before the first worker is admitted or after the
      // last one has left.
      absl::SleepFor(absl::Milliseconds(random() % 300));
      for (int kill = 0; kill < 6; ++kill) {
        const auto outage = run.KillAndRestart(victims[random() % victims.size()]);
        ++kills;
        if (!outage.has_value()) break;
        outages.push_back(outage->total - outage->restart);
        absl::SleepFor(absl::Milliseconds(random() % 150));
      }
      EXPECT_EQ(run.Finish(), undisturbed) << "run " << number << ", seed " << seed;
      if (HasFailure()) return;
    }
    std::sort(outages.begin(), outages.end());
    ASSERT_FALSE(outages.empty());
    std::cerr << kills
              << " kills; from death to the next closed round, without the restart itself: "
              << "median " << outages[outages.size() / 2] << ", worst " << outages.back()
              << std::endl;
  }
};

TEST_P(RecoveryTest, TheCoordinatorIsKilledAndNobodyNoticesInTheParameters) {
  KillAtManyInstants(WriteJob("recovery", GetParam()), {{0}}, 4);
}

TEST_P(RecoveryTest, AFollowerIsKilledAndNobodyNoticesInTheParameters) {
  KillAtManyInstants(WriteJob("recovery", GetParam()), {{1}}, 4);
}

TEST_P(RecoveryTest, BothServersAreKilledAtOnceAndNobodyNoticesInTheParameters) {
  KillAtManyInstants(WriteJob("recovery", GetParam()), {{0, 1}, {0}, {1}}, 4);
}

TEST_P(RecoveryTest, MemoryIsSharedAnewWithAServerThatIsKilled) {
  KillAtManyInstants(WriteWideJob("shared", GetParam()), {{0, 1}, {0}, {1}}, 3);
}

INSTANTIATE_TEST_SUITE_P(Places, RecoveryTest, ::testing::Values(v1::WORKERS, v1::SERVERS),
                         [](const auto& place) {
                           return v1::OptimizerPlacement_Name(place.param);
                         });

class NormRecoveryTest : public RecoveryTest {};

// Servers are killed before, between and after the stages in which a step's norms are computed.
TEST_P(NormRecoveryTest, ServersAreKilledAndNobodyNoticesInTheParameters) {
  const std::string job = WriteIrisJob("norms", [](v1::JobFile& job) {
    job.set_epochs(150);
    job.set_chunk_bytes(128);
    job.set_optimizer_placement(GetParam());
    job.set_clip_norm(0.5);
    job.mutable_optimizer()->mutable_lamb()->set_learning_rate(0.01);
  });
  KillAtManyInstants(job, {{0, 1}, {0}, {1}}, 5);
}

INSTANTIATE_TEST_SUITE_P(Places, NormRecoveryTest, ::testing::Values(v1::SERVERS),
                         [](const auto& place) {
                           return v1::OptimizerPlacement_Name(place.param);
                         });

// Returns true if a server has mapped memory of workers.
bool HasMappedWorkers(const Process& server) {
  std::ifstream maps(absl::StrCat("/proc/", server.pid(), "/maps"));
  const std::string text{std::istreambuf_iterator<char>(maps), {}};
  return text.find("/memfd:") != std::string::npos;
}

TEST(StateTest, ARestartedServerMapsTheMemoryOfItsWorkersAgain) {
  DisturbedJob job(WriteWideJob("mapped", v1::WORKERS), {"--lease=2m", "--stream_grace=2m"});
  ASSERT_TRUE(job.AwaitProgress(20));
  // While a worker is stopped, no step ends, so the job cannot end before the server has been
  // checked. The other workers share their memory again.
  job.worker(0).Kill(SIGSTOP);
  job.cluster().server(0).Kill(SIGKILL);
  EXPECT_EQ(WaitFor(job.cluster().server(0)), KilledBy(SIGKILL));
  job.cluster().Restart(0);
  const absl::Time deadline = absl::Now() + kLongEnough;
  while (!HasMappedWorkers(job.cluster().server(0)) && absl::Now() < deadline) {
    absl::SleepFor(kPoll);
  }
  EXPECT_TRUE(HasMappedWorkers(job.cluster().server(0))) << job.Outputs();
  job.worker(0).Kill(SIGCONT);
  job.Finish();
}

// Flips a bit in both sets of values of the largest state file in `state`; one of the two sets is
// published. The records of a wide job take one or two pages, and its first chunk takes four.
void DamageValues(const std::string& state) {
  std::filesystem::path largest;
  for (const auto& entry : std::filesystem::directory_iterator(state)) {
    if (entry.path().filename().string().rfind("group-", 0) != 0) continue;
    if (!entry.is_regular_file()) continue;  // further slots
    if (largest.empty() || entry.file_size() > std::filesystem::file_size(largest)) {
      largest = entry.path();
    }
  }
  ASSERT_FALSE(largest.empty());
  const size_t records = 8192;
  const size_t bytes = std::filesystem::file_size(largest);
  ASSERT_GT(bytes, 4 * records);
  std::fstream file(largest, std::ios::in | std::ios::out | std::ios::binary);
  for (const size_t at : {records, (bytes + records) / 2}) {
    file.seekg(at);
    const char byte = static_cast<char>(file.get());
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
  }
}

class DamageTest : public ::testing::TestWithParam<int> {};

TEST_P(DamageTest, DamagedStateIsNamedAndNotUsedAndOnlyItsJobIsToldToStartAgain) {
  const int server = GetParam();
  DisturbedJob job(WriteWideJob("damaged", v1::SERVERS), {"--lease=2m"});
  ASSERT_TRUE(job.AwaitProgress(50));
  // Another job, which is stopped in the middle. It would end with 204 if its state were lost.
  const auto other = job.cluster().StartWorker(WriteJob("whole", v1::SERVERS), 0, 1);
  const auto trains = other->WaitForLine("step ", kLongEnough);
  ASSERT_TRUE(trains.ok()) << trains.status();
  other->Kill(SIGSTOP);
  job.cluster().server(server).Kill(SIGKILL);
  EXPECT_EQ(WaitFor(job.cluster().server(server)), KilledBy(SIGKILL));
  DamageValues(job.cluster().state(server));
  job.cluster().Restart(server);
  for (int rank = 0; rank < kWorkers; ++rank) {
    const Exit exit = WaitFor(job.worker(rank));
    EXPECT_GE(exit.code.value_or(0), 128) << job.Outputs();
  }
  const auto damage = job.cluster().server(server).WaitForLine("has checksum", kLongEnough);
  ASSERT_TRUE(damage.ok()) << damage.status();
  EXPECT_THAT(*damage,
              HasSubstr(absl::StrCat("state file ", job.cluster().state(server), "/group-")));
  other->Kill(SIGCONT);
  EXPECT_EQ(WaitFor(*other), ExitCode(0)) << other->output() << job.Outputs();
}

INSTANTIATE_TEST_SUITE_P(Servers, DamageTest, ::testing::Values(0, 1));

TEST(StateTest, ASecondServerIsRefusedAndToldWhoHasTheState) {
  Cluster cluster(1);
  const auto second = RunProgram(
      {.program = "server/ps-server",
       .args = {"--bind=127.0.0.1", "--port=0", absl::StrCat("--state=", cluster.state(0))}},
      kLongEnough);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->exit, ExitCode(3)) << second->output;
  EXPECT_THAT(second->output, HasSubstr(absl::StrCat("process ", cluster.server(0).pid())));
}

TEST(StateTest, AServerThatStartsAfterTheEndIsDone) {
  DisturbedJob job(WriteJob("ended", v1::WORKERS));
  // The kill should come when the servers receive the end of the job. It may come later.
  const auto ends = job.cluster().server(0).WaitForLine("is closed", kLongEnough);
  ASSERT_TRUE(ends.ok()) << ends.status();
  job.KillAndRestart({0, 1});
  job.Finish();
}

}  // namespace
}  // namespace syncgrads::testing
