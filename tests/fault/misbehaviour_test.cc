// Tests clients that misbehave (misbehaviour.py) beside an honest job that compares its results bit
// for bit. The server must answer with an error that names the limit. The honest job must continue.
// Afterwards the server must hold about the resources that it held before, and must serve others.

#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <ostream>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/fault/cluster.h"
#include "tests/integration/cluster.h"
#include "tests/testing/files_in.h"
#include "tests/testing/process/process.h"
#include "tests/testing/small_quarantine.h"

namespace syncgrads::fault {
namespace {

using testing::kLongEnough;
using testing::Process;

#ifdef __SANITIZE_ADDRESS__
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

// By how many bytes the server's memory may be larger after the client has gone: gRPC's thread
// pools, the kept events, the names of closed jobs, and what the address sanitizer keeps.
constexpr int64_t kMoreMemory = int64_t{kIsSanitized ? 512 : 16} << 20;
// By how many bytes the server's memory may grow while the client runs, and during each of the
// rows.
constexpr int64_t kMostMeanwhile = int64_t{kIsSanitized ? 1024 : 128} << 20;
constexpr int64_t kMostInRow = int64_t{kIsSanitized ? 2048 : 512} << 20;
// The threads that are started when they are first needed, for example to allocate large groups.
constexpr int64_t kMoreThreads = 2;
constexpr int64_t kMoreDescriptors = 8;
constexpr int64_t kMoreFiles = 4;
// The time that the server has to release these resources.
constexpr absl::Duration kAftermath = absl::Minutes(1);
// The timeout of the client. Its longest scenario opens 1500 connections, one after the other.
constexpr absl::Duration kClient = absl::Minutes(10);

struct Case {
  const char* scenario;
  bool small_state = false;  // the server's state is on a file system of kSmallStateBytes
  // Many misbehaviours are tried: afterwards nothing may be left of them. Memory, descriptors and
  // threads are within 5 % of those before, apart from the constants above. After a second time,
  // memory is within 10 % of what it was after the first time.
  bool many = false;
  friend std::ostream& operator<<(std::ostream& stream, const Case& which) {
    return stream << which.scenario;
  }
};

// Returns a size from /proc/PID/status in bytes.
int64_t StatusOf(pid_t pid, const std::string& name) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    int64_t kilobytes = 0;
    if (absl::StartsWith(line, name + ":") &&
        absl::SimpleAtoi(line.substr(name.size() + 1, line.size() - name.size() - 4), &kilobytes)) {
      return kilobytes << 10;
    }
  }
  ADD_FAILURE() << "the server has no " << name;
  return 0;
}

int64_t EntriesIn(const std::string& directory) {
  std::error_code error;
  const std::filesystem::directory_iterator entries(directory, error);
  return error ? 0 : std::distance(begin(entries), end(entries));
}

// The server's own threads. gRPC's pools have as many threads as they have needed at once.
int64_t OwnThreads(pid_t pid) {
  int64_t count = 0;
  std::error_code error;
  for (const auto& task :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"), error)) {
    std::ifstream comm(task.path() / "comm");
    std::string name;
    if (std::getline(comm, name) && name == "ps-server") ++count;
  }
  return count;
}

struct Holding {
  int64_t memory = 0, descriptors = 0, files = 0, threads = 0;
  friend std::ostream& operator<<(std::ostream& stream, const Holding& holding) {
    return stream << (holding.memory >> 20) << " MiB, " << holding.descriptors
                  << " file descriptors, " << holding.files << " state files, " << holding.threads
                  << " threads";
  }
};

class MisbehaviourTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (kIsSanitized) setenv("ASAN_OPTIONS", testing::kSmallQuarantine, /*overwrite=*/1);
    state_ = testing::TemporaryPath(absl::StrCat("misbehaviour-", getpid()));
    std::filesystem::remove_all(state_);
    std::filesystem::create_directory(state_);
    if (GetParam().small_state) {
      if (!CanMount()) GTEST_SKIP() << "this process may not mount a tmpfs";
      const std::string options = absl::StrCat("size=", kSmallStateBytes);
      ASSERT_EQ(mount("tmpfs", state_.c_str(), "tmpfs", 0, options.c_str()), 0);
      mounted_ = true;
    }
    cluster_ = std::make_unique<testing::Cluster>(
        1, std::vector<std::string>{absl::StrCat("--state=", state_, "/server"),
                                    "--abandoned_job_ttl=1s", "--lease=20s", "--reflection"});
    honest_ = Start("tests/fault/honest", {absl::StrCat("--server=", cluster_->coordinator())});
    ASSERT_TRUE(honest_->WaitForLine("step 500", kLongEnough).ok()) << honest_->output();
  }

  void TearDown() override {
    honest_ = nullptr;
    cluster_ = nullptr;
    if (mounted_) umount2(state_.c_str(), MNT_DETACH);
    std::filesystem::remove_all(state_);
  }

  static std::unique_ptr<Process> Start(const std::string& program,
                                        const std::vector<std::string>& args) {
    auto process = Process::Start({.program = program, .args = args});
    EXPECT_TRUE(process.ok()) << process.status();
    return process.ok() ? *std::move(process) : nullptr;
  }

  pid_t pid() const { return cluster_->server(0).pid(); }

  Holding Held() const {
    return {StatusOf(pid(), "VmRSS"), EntriesIn(absl::StrCat("/proc/", pid(), "/fd")),
            static_cast<int64_t>(testing::FilesIn(state_ + "/server")), OwnThreads(pid())};
  }

  // Waits until the server's memory has not fallen for as long as freed memory is kept
  // (third_party/jemalloc), for a limited time.
  int64_t MemoryInTheEnd() const {
    constexpr absl::Duration kKept = absl::Seconds(10);
    const absl::Time deadline = absl::Now() + kAftermath;
    int64_t least = Held().memory;
    for (absl::Time fell = absl::Now(); absl::Now() < std::min(deadline, fell + kKept);) {
      absl::SleepFor(absl::Milliseconds(50));
      const int64_t memory = Held().memory;
      if (memory < least) fell = absl::Now();
      least = std::min(least, memory);
    }
    return least;
  }

  // Waits until the server holds about the same resources as in `before`.
  void ExpectLetGo(const Holding& before) const {
    const absl::Time deadline = absl::Now() + kAftermath;
    Holding held = Held();
    const auto is_near = [&] {
      if (GetParam().many) {
        const auto within = [](int64_t now, int64_t before, int64_t more) {
          return now <= before + before / 20 + more;
        };
        return within(held.memory, before.memory, kMoreMemory) &&
               within(held.descriptors, before.descriptors, 0) &&
               within(held.threads, before.threads, kMoreThreads) && held.files <= before.files;
      }
      return held.memory <= before.memory + kMoreMemory &&
             held.descriptors <= before.descriptors + kMoreDescriptors &&
             held.files <= before.files + kMoreFiles;
    };
    while (!is_near() && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(50));
      held = Held();
    }
    EXPECT_TRUE(is_near()) << "the server held " << before << " before, and " << held
                           << " afterwards";
  }

  // Runs the client until its end.
  void Misbehave() const {
    const std::unique_ptr<Process> client =
        Start("/usr/bin/python3",
              {"tests/fault/misbehaviour.py", GetParam().scenario,
               absl::StrCat("--coordinator=", cluster_->coordinator()),
               absl::StrCat("--pid=", pid()), absl::StrCat("--state=", state_, "/server"),
               "--stubs=tests/integration/stubs", absl::StrCat("--most_mib=", kMostInRow >> 20)});
    const auto exit = client->Wait(kClient);
    ASSERT_TRUE(exit.ok()) << exit.status();
    EXPECT_EQ(*exit, testing::ExitCode(0)) << client->output();
    std::cerr << client->output();
    ASSERT_FALSE(cluster_->server(0).Wait(absl::ZeroDuration()).ok())
        << "the server has ended:\n"
        << cluster_->server(0).output();
  }

  std::string state_;
  bool mounted_ = false;
  std::unique_ptr<testing::Cluster> cluster_;
  std::unique_ptr<Process> honest_;
};

TEST_P(MisbehaviourTest, MeetsALimitAndNobodyElseNotices) {
  const Holding before = Held();
  // Resets the peak memory (VmHWM).
  std::ofstream(absl::StrCat("/proc/", pid(), "/clear_refs")) << 5;
  ASSERT_NO_FATAL_FAILURE(Misbehave());
  // The rows are measured one by one.
  if (!GetParam().many) {
    EXPECT_LE(StatusOf(pid(), "VmHWM") - before.memory, kMostMeanwhile);
  }
  ExpectLetGo(before);
  if (GetParam().many && !kIsSanitized) {
    const int64_t once = MemoryInTheEnd();
    ASSERT_NO_FATAL_FAILURE(Misbehave());
    ExpectLetGo(before);
    EXPECT_LE(MemoryInTheEnd(), once + once / 10) << "after " << once;
  }
  // Others are served.
  const std::unique_ptr<Process> visitor =
      Start("tests/fault/visitor", {absl::StrCat("--server=", cluster_->coordinator())});
  EXPECT_EQ(testing::WaitFor(*visitor), testing::ExitCode(0)) << visitor->output();
  // A text from outside does not look like a line of the log.
  EXPECT_FALSE(absl::StrContains(cluster_->server(0).output(), "\nforged line"));
  honest_->Kill(SIGTERM);
  EXPECT_EQ(testing::WaitFor(*honest_), testing::ExitCode(0)) << honest_->output();
  // How much slower the honest job was, for people to read.
  const std::string output = honest_->output();
  std::cerr << output.substr(std::min(output.find("honest:"), output.size()));
}

INSTANTIATE_TEST_SUITE_P(Scenarios, MisbehaviourTest,
                         ::testing::Values(Case{"chunk_bomb"}, Case{"repeats"}, Case{"descriptors"},
                                           Case{"names"}, Case{"job_names"}, Case{"ends"},
                                           Case{"half_open"}, Case{"partial"}, Case{"gzip"},
                                           Case{"future_leave"}, Case{"churn"},
                                           Case{"unread", /*small_state=*/true},
                                           Case{"rows", /*small_state=*/false, /*many=*/true}),
                         [](const auto& test) { return std::string(test.param.scenario); });

}  // namespace
}  // namespace syncgrads::fault
