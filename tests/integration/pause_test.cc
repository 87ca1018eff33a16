// Two jobs train while processes are stopped (SIGSTOP) for several leases, while a worker is
// stopped for less than its lease, or while the wall clock is stepped: no membership ends, and both
// jobs end with the parameters of an undisturbed run. A paused virtual machine, a frozen container,
// a server that swaps, or an NTP client has this effect.

#include <grpcpp/create_channel.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kServers = 2;
constexpr int kWorkers = 2;  // of each job
// Longer than a process waits for a processor on a busy machine.
constexpr absl::Duration kLease = absl::Seconds(3);
constexpr absl::Duration kPause = absl::Seconds(9);  // three leases
// The processes are stopped after this round. The jobs have about 3000 steps.
constexpr uint64_t kStopAfterRound = 100;
constexpr absl::Duration kPoll = absl::Milliseconds(2);

// The processes that are stopped.
struct Case {
  const char* name;
  std::vector<int> servers;
  int workers = 0;  // the first ones of each job
  absl::Duration lease = kLease;
  absl::Duration pause = kPause;
  friend std::ostream& operator<<(std::ostream& stream, const Case& which) {
    return stream << which.name;
  }
};

// Two jobs on the same servers, each with two workers: Iris, whose members are fixed, and an
// elastic job whose optimizer runs on the servers.
class TwoJobs {
 public:
  explicit TwoJobs(absl::Duration lease = kLease)
      : cluster_(kServers,
                 {"--exit_when_done", absl::StrCat("--lease=", absl::FormatDuration(lease)),
                  absl::StrCat("--stream_grace=", absl::FormatDuration(kLease)),
                  "--heartbeat_interval=200ms"}) {
    Start("iris", [](v1::JobFile&) {});
    Start("second", [](v1::JobFile& job) {
      job.set_optimizer_placement(v1::SERVERS);
      job.mutable_elastic();
    });
  }

  // Waits until both jobs have made `round` steps. Returns false, with a test failure, if a program
  // ends first or the time runs out.
  bool AwaitRound(uint64_t round) {
    std::vector<std::unique_ptr<v1::Admin::Stub>> stubs;
    for (int server = 0; server < kServers; ++server) {
      stubs.push_back(v1::Admin::NewStub(
          grpc::CreateChannel(cluster_.address(server), grpc::InsecureChannelCredentials())));
    }
    const absl::Time deadline = absl::Now() + kLongEnough;
    while (absl::Now() < deadline && !SomebodyHasEnded()) {
      std::set<std::string> reached;
      for (const auto& stub : stubs) AddReached(round, *stub, reached);
      if (reached.size() == jobs_.size()) return true;
      absl::SleepFor(kPoll);
    }
    ADD_FAILURE() << "the jobs have not both reached round " << round << ":\n" << Outputs();
    return false;
  }

  // Sends `signal` to the programs of `which`: servers first.
  void Signal(const Case& which, int signal) {
    for (const int server : which.servers) cluster_.server(server).Kill(signal);
    for (Job& job : jobs_) {
      for (int rank = 0; rank < which.workers; ++rank) job.workers[rank]->Kill(signal);
    }
  }

  // Waits for all programs, which must succeed. Returns the parameters of all workers.
  std::vector<std::string> Finish() {
    std::vector<std::string> models;
    for (Job& job : jobs_) {
      for (int rank = 0; rank < kWorkers; ++rank) {
        const Exit exit = WaitFor(*job.workers[rank]);
        EXPECT_EQ(exit, ExitCode(0)) << job.name << ", rank " << rank << ":\n"
                                     << job.workers[rank]->output();
        if (exit == ExitCode(0)) models.push_back(ReadFileOrDie(OutputOf(job, rank)));
      }
    }
    for (int server = 0; server < kServers; ++server) {
      EXPECT_EQ(WaitFor(cluster_.server(server)), ExitCode(0)) << Outputs();
    }
    EXPECT_THAT(cluster_.server(0).output(), Not(HasSubstr("was dropped")));
    return models;
  }

  std::string ServerOutput() { return cluster_.server(0).output(); }

 private:
  struct Job {
    std::string name;
    std::vector<std::unique_ptr<Process>> workers;
  };

  void Start(const std::string& name, const std::function<void(v1::JobFile&)>& change) {
    const std::string file = WriteIrisJob(name, [&](v1::JobFile& job) {
      job.set_epochs(300);
      job.set_chunk_bytes(128);
      change(job);
    });
    Job& job = jobs_.emplace_back();
    job.name = name;
    for (int rank = 0; rank < kWorkers; ++rank) {
      std::filesystem::remove(OutputOf(job, rank));
      job.workers.push_back(cluster_.StartWorker(
          file, rank, kWorkers,
          {absl::StrCat("--output=", TemporaryPath(name + ".safetensors")), "--output_per_rank"}));
    }
  }

  static std::string OutputOf(const Job& job, int rank) {
    return TemporaryPath(absl::StrCat(job.name, ".rank", rank, ".safetensors"));
  }

  // Adds the jobs that have reached `round` on a server. A server may have no chunk of a job.
  static void AddReached(uint64_t round, v1::Admin::Stub& stub, std::set<std::string>& reached) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
    v1::GetStatusReply reply;
    if (!stub.GetStatus(&context, {}, &reply).ok()) return;
    for (const v1::JobStatus& job : reply.jobs()) {
      for (const v1::GroupStatus& group : job.groups()) {
        if (group.name() == "model" && group.open_round() >= round) reached.insert(job.job());
      }
    }
  }

  bool SomebodyHasEnded() const {
    for (const Job& job : jobs_) {
      for (const std::unique_ptr<Process>& worker : job.workers) {
        if (worker->Wait(absl::ZeroDuration()).ok()) return true;
      }
    }
    return false;
  }

  std::string Outputs() {
    std::string all;
    for (int server = 0; server < kServers; ++server) {
      absl::StrAppend(&all, "server ", server, ":\n", cluster_.server(server).output());
    }
    for (const Job& job : jobs_) {
      for (int rank = 0; rank < kWorkers; ++rank) {
        absl::StrAppend(&all, job.name, ", rank ", rank, ":\n", job.workers[rank]->output());
      }
    }
    return all;
  }

  Cluster cluster_;
  std::vector<Job> jobs_;
};

class PauseTest : public ::testing::TestWithParam<Case> {};

TEST_P(PauseTest, APauseCostsNothing) {
  const std::vector<std::string> undisturbed = TwoJobs().Finish();
  ASSERT_EQ(undisturbed.size(), 2u * kWorkers);
  TwoJobs jobs(GetParam().lease);
  ASSERT_TRUE(jobs.AwaitRound(kStopAfterRound));
  jobs.Signal(GetParam(), SIGSTOP);
  // This sleep is the length of the pause. It does not wait for an event.
  absl::SleepFor(GetParam().pause);
  jobs.Signal(GetParam(), SIGCONT);
  EXPECT_TRUE(jobs.Finish() == undisturbed) << "the parameters are not those of an undisturbed run";
}

INSTANTIATE_TEST_SUITE_P(Stopped, PauseTest,
                         ::testing::Values(Case{"Coordinator", {0}}, Case{"DataServer", {1}},
                                           Case{"AllServers", {0, 1}},
                                           Case{"Everything", {0, 1}, /*workers=*/kWorkers},
                                           // Longer than a connection needs to be given up whose
                                           // peer answers no ping for 10 s.
                                           Case{"OneWorker",
                                                {},
                                                /*workers=*/1,
                                                /*lease=*/absl::Minutes(2),
                                                /*pause=*/absl::Seconds(26)}),
                         [](const auto& test) { return std::string(test.param.name); });

// Sets the wall clock of programs that are started while this object lives. Their monotonic clocks
// do not change.
class WallClock {
 public:
  WallClock() {
    Set("+0");
    setenv("FAKETIME_TIMESTAMP_FILE", path_.c_str(), 1);
    setenv("FAKETIME_NO_CACHE", "1", 1);
    setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1", 1);
    // The dynamic linker replaces $LIB with the library folder of this architecture. The allocator
    // is that of the C library: libfaketime and jemalloc call each other before either is ready.
    setenv("LD_PRELOAD", "/usr/$LIB/faketime/libfaketimeMT.so.1:libstdc++.so.6:libc.so.6", 1);
  }
  ~WallClock() { unsetenv("LD_PRELOAD"); }

  // Adds `offset`, for example "+1d", to the real time.
  void Set(const std::string& offset) {
    const std::string next = path_ + ".next";
    std::ofstream(next) << offset << "\n";
    std::filesystem::rename(next, path_);
  }

 private:
  const std::string path_ = TemporaryPath("date");
};

std::string DayAfter(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d", time + absl::Hours(24), absl::LocalTimeZone());
}

TEST(WallClockTest, AStepOfADayForwardOrBackHasNoEffect) {
  const std::vector<std::string> undisturbed = TwoJobs().Finish();
  ASSERT_EQ(undisturbed.size(), 2u * kWorkers);
  WallClock wall_clock;
  TwoJobs jobs;
  uint64_t round = kStopAfterRound;
  for (const std::string offset : {"+1d", "-1d", "+1d"}) {
    ASSERT_TRUE(jobs.AwaitRound(round));
    wall_clock.Set(offset);
    round += 200;
  }
  const absl::Time real = absl::Now();
  EXPECT_TRUE(jobs.Finish() == undisturbed) << "the parameters are not those of an undisturbed run";
  // The coordinator logs the end of the jobs with the wall-clock time that it sees.
  EXPECT_THAT(jobs.ServerOutput(),
              AnyOf(HasSubstr(DayAfter(real)), HasSubstr(DayAfter(absl::Now()))));
}

}  // namespace
}  // namespace syncgrads::testing
