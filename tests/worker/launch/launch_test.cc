// ps-launch itself, with stand-ins for ps-server and ps-worker.

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/process/process.h"

namespace syncgrads {
namespace {

using ::testing::AllOf;
using testing::Exit;
using testing::ExitCode;
using ::testing::HasSubstr;
using testing::KilledBy;
using ::testing::Not;
using testing::Process;
using testing::ProcessOptions;

constexpr absl::Duration kLongEnough = absl::Seconds(60);
constexpr char kLaunch[] = "worker/launch/ps-launch";
constexpr char kStandIn[] = "tests/worker/launch/stand_in";

std::vector<std::string> Args(const std::vector<std::string>& flags,
                              const std::vector<std::string>& worker_flags) {
  std::vector<std::string> args = {"--job=tests/worker/launch/two_servers_three_workers.job",
                                   absl::StrCat("--server_program=", kStandIn),
                                   absl::StrCat("--worker_program=", kStandIn)};
  args.insert(args.end(), flags.begin(), flags.end());
  args.push_back("--");
  args.insert(args.end(), worker_flags.begin(), worker_flags.end());
  return args;
}

std::unique_ptr<Process> Start(const std::vector<std::string>& flags,
                               const std::vector<std::string>& worker_flags) {
  auto process = Process::Start({.program = kLaunch, .args = Args(flags, worker_flags)});
  EXPECT_TRUE(process.ok()) << process.status();
  return *std::move(process);
}

// Runs a group until it ends, and returns everything that it has printed.
std::string RunGroup(const std::vector<std::string>& flags,
                     const std::vector<std::string>& worker_flags, Exit expected) {
  const std::unique_ptr<Process> launch = Start(flags, worker_flags);
  const absl::StatusOr<Exit> exit = launch->Wait(kLongEnough);
  EXPECT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(exit.value_or(ExitCode(-1)), expected) << launch->output();
  return launch->output();
}

// Waits for the line "[WHO] waits, pid N" and returns N.
pid_t PidOf(Process& launch, const std::string& who) {
  const std::string start = absl::StrCat("[", who, "] waits, pid ");
  const absl::StatusOr<std::string> line = launch.WaitForLine(start, kLongEnough);
  int pid = -1;
  if (!line.ok() || !absl::SimpleAtoi(line->substr(start.size()), &pid)) {
    ADD_FAILURE() << who << " has not said its pid: " << launch.output();
  }
  return pid;
}

TEST(LaunchTest, StartsServersAndWorkersOfTheJobFile) {
  const std::string output = RunGroup({}, {}, ExitCode(0));
  EXPECT_THAT(output,
              AllOf(HasSubstr("/server-0 --index=0 --port=0"),
                    HasSubstr("/server-1 --index=1 --port=0"), Not(HasSubstr("[server 2]"))));
  EXPECT_THAT(output, AllOf(HasSubstr("[worker 0] arguments:"), HasSubstr("[worker 1] arguments:"),
                            HasSubstr("[worker 2] arguments:"), Not(HasSubstr("[worker 3]"))));
}

TEST(LaunchTest, FlagsOverruleTheJobFile) {
  const std::string output = RunGroup({"--servers=1", "--workers=4"}, {}, ExitCode(0));
  EXPECT_THAT(output, AllOf(HasSubstr("[server 0]"), Not(HasSubstr("[server 1]")),
                            HasSubstr("[worker 3] "), Not(HasSubstr("[worker 4]"))));
}

TEST(LaunchTest, TellsServersAndWorkersWhereTheCoordinatorListens) {
  const std::string output = RunGroup({}, {}, ExitCode(0));
  EXPECT_THAT(output,
              HasSubstr("--index=0 --port=0 --bind=127.0.0.1 --exit_when_done --servers=2\n"));
  EXPECT_THAT(output, HasSubstr("--coordinator=127.0.0.1:4000\n"));
  EXPECT_THAT(output, HasSubstr("--server=127.0.0.1:4000 --rank=2 --world_size=3\n"));
}

TEST(LaunchTest, FlagsAfterTheDashesGoToEveryWorker) {
  const std::string output = RunGroup({}, {"--seed=7", "--", "x"}, ExitCode(0));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(output,
                HasSubstr(absl::StrCat("--rank=", rank, " --world_size=3 --seed=7 -- x\n")));
  }
}

TEST(LaunchTest, ServerArgsGoToEveryServer) {
  const std::string output =
      RunGroup({"--server_args=--lease=3s,--heartbeat_interval=1s"}, {}, ExitCode(0));
  EXPECT_THAT(output, HasSubstr("--servers=2 --lease=3s --heartbeat_interval=1s\n"));
  EXPECT_THAT(output,
              HasSubstr("--coordinator=127.0.0.1:4000 --lease=3s --heartbeat_interval=1s\n"));
}

TEST(LaunchTest, SaysWhatStartsAndHandsOnTheLogLevel) {
  EXPECT_THAT(
      RunGroup({}, {}, ExitCode(0)),
      AllOf(HasSubstr("[launch] 2 servers and 3 workers start\n"), Not(HasSubstr("--log_level"))));
  const std::string output = RunGroup({"--log_level=debug", "--servers=1"}, {"--x"}, ExitCode(0));
  EXPECT_THAT(output, HasSubstr("[launch] 1 server and 3 workers start\n"));
  EXPECT_THAT(output, HasSubstr("--servers=1 --log_level=debug\n"));
  EXPECT_THAT(output, HasSubstr("--world_size=3 --log_level=debug --x\n"));
  EXPECT_THAT(RunGroup({"--log_level=warning"}, {}, ExitCode(0)), Not(HasSubstr("[launch]")));
}

TEST(LaunchTest, ALastLineWithoutAnEndIsPrinted) {
  EXPECT_THAT(RunGroup({}, {"--act=w1:unfinished"}, ExitCode(0)),
              HasSubstr("[worker 1] no line end\n"));
}

TEST(LaunchTest, AWorkerThatFailsForGoodEndsTheGroup) {
  const std::string output =
      RunGroup({}, {"--act=w0:wait", "--act=w1:exit:3", "--act=w2:wait"}, ExitCode(3));
  EXPECT_THAT(
      output,
      HasSubstr("[launch] worker 1 ended with exit code 3; stopping all servers and workers\n"));
}

TEST(LaunchTest, WhatTheOthersExitWithAfterAFailureDoesNotCount) {
  RunGroup({}, {"--act=w0:wait_for:5", "--act=w1:exit:3", "--act=w2:wait_for:6"}, ExitCode(3));
}

TEST(LaunchTest, AKilledWorkerIsReportedAndTheOthersFinish) {
  const std::string output = RunGroup({}, {"--act=w1:raise:9"}, ExitCode(0));
  EXPECT_THAT(output, HasSubstr("[launch] worker 1 was killed by signal 9 (Killed); the others "));
}

TEST(LaunchTest, ARetryableExitCodeCountsAsADeath) {
  const std::string output = RunGroup({}, {"--act=w1:exit:200"}, ExitCode(0));
  EXPECT_THAT(output, HasSubstr("[launch] worker 1 ended with exit code 200; the others "));
}

TEST(LaunchTest, AKilledWorkerCanEndTheGroup) {
  RunGroup({"--on_worker_death=end"}, {"--act=w0:wait", "--act=w1:raise:9", "--act=w2:wait"},
           ExitCode(128 + 9));
}

TEST(LaunchTest, AGroupWhoseWorkersHaveAllBeenKilledHasFailed) {
  RunGroup({}, {"--act=w0:raise:9", "--act=w1:raise:9", "--act=w2:raise:9"}, ExitCode(128 + 9));
}

TEST(LaunchTest, AServerThatIsKilledIsStartedAgainOnItsState) {
  const std::unique_ptr<Process> launch =
      Start({}, {"--act=w0:wait", "--act=w1:wait", "--act=w2:wait"});
  PidOf(*launch, "worker 2");
  const absl::StatusOr<std::string> line = launch->WaitForLine("/server-1 ", kLongEnough);
  ASSERT_TRUE(line.ok()) << line.status();
  const size_t begin = line->find("--state=") + strlen("--state=");
  const std::string folder = line->substr(begin, line->find("/server-1 ") - begin);
  EXPECT_TRUE(std::filesystem::exists(folder)) << folder;
  kill(PidOf(*launch, "server 1"), SIGKILL);
  ASSERT_TRUE(launch
                  ->WaitForLine("[launch] server 1 was killed by signal 9 (Killed); restarting it",
                                kLongEnough)
                  .ok());
  const std::string arguments = absl::StrCat("--state=", folder, "/server-1 ");
  const auto starts = [&] {
    const std::string output = launch->output();
    const size_t first = output.find(arguments);
    return first != std::string::npos && output.find(arguments, first + 1) != std::string::npos;
  };
  const absl::Time deadline = absl::Now() + kLongEnough;
  while (!starts() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_TRUE(starts()) << launch->output();
  launch->Kill(SIGTERM);
  const absl::StatusOr<Exit> exit = launch->Wait(kLongEnough);
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(*exit, ExitCode(128 + SIGTERM));
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST(LaunchTest, AServerThatIsKilledCanEndTheGroup) {
  const std::unique_ptr<Process> launch =
      Start({"--on_server_death=end"}, {"--act=w0:wait", "--act=w1:wait", "--act=w2:wait"});
  PidOf(*launch, "worker 2");
  kill(PidOf(*launch, "server 1"), SIGKILL);
  const absl::StatusOr<Exit> exit = launch->Wait(kLongEnough);
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(*exit, ExitCode(128 + 9));
  EXPECT_THAT(
      launch->output(),
      HasSubstr(
          "[launch] server 1 was killed by signal 9 (Killed); stopping all servers and workers\n"));
}

TEST(LaunchTest, AServerThatDoesNotListenIsAnError) {
  const std::string output = RunGroup({"--server_args=--act=s1:exit:4"}, {}, ExitCode(1));
  EXPECT_THAT(output,
              HasSubstr("[launch] server 1 ended with exit code 4 before it was listening\n"));
  EXPECT_THAT(output, Not(HasSubstr("[worker")));
}

TEST(LaunchTest, HandsOnSigterm) {
  const std::unique_ptr<Process> launch =
      Start({}, {"--act=w0:wait", "--act=w1:wait", "--act=w2:wait"});
  for (const char* who : {"worker 0", "worker 1", "worker 2"}) PidOf(*launch, who);
  launch->Kill(SIGTERM);
  const absl::StatusOr<Exit> exit = launch->Wait(kLongEnough);
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(*exit, ExitCode(128 + SIGTERM));
  EXPECT_THAT(
      launch->output(),
      HasSubstr(
          "[launch] signal 15 (Terminated) received: forwarded to all servers and workers\n"));
}

TEST(LaunchTest, HandsOnSigusr1) {
  const std::unique_ptr<Process> launch =
      Start({}, {"--act=w0:wait", "--act=w1:wait", "--act=w2:wait"});
  for (const char* who : {"worker 0", "worker 1", "worker 2"}) PidOf(*launch, who);
  launch->Kill(SIGUSR1);
  const absl::StatusOr<Exit> exit = launch->Wait(kLongEnough);
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(*exit, ExitCode(128 + SIGUSR1));
  EXPECT_THAT(
      launch->output(),
      HasSubstr("[launch] signal 10 (User defined signal 1) received: forwarded to all servers and "
                "workers\n"));
}

TEST(LaunchTest, KillsWhatIgnoresSigterm) {
  const std::unique_ptr<Process> launch =
      Start({"--grace=100ms", "--on_worker_death=end"}, {"--act=w0:stubborn", "--act=w1:wait"});
  PidOf(*launch, "worker 0");  // prints its pid once it ignores SIGTERM
  kill(PidOf(*launch, "worker 1"), SIGKILL);
  const absl::StatusOr<Exit> exit = launch->Wait(kLongEnough);
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(*exit, ExitCode(128 + SIGKILL));
  EXPECT_THAT(launch->output(),
              HasSubstr("[launch] killing the programs that are still running after 100ms\n"));
}

TEST(LaunchTest, ASecondSignalKillsAtOnce) {
  const std::unique_ptr<Process> launch =
      Start({"--grace=1h"}, {"--act=w0:stubborn", "--act=w1:stubborn", "--act=w2:stubborn"});
  for (const char* who : {"worker 0", "worker 1", "worker 2"}) PidOf(*launch, who);
  launch->Kill(SIGTERM);
  ASSERT_TRUE(launch->WaitForLine("forwarded to all", kLongEnough).ok());
  launch->Kill(SIGTERM);
  const absl::StatusOr<Exit> exit = launch->Wait(kLongEnough);
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(*exit, ExitCode(128 + SIGTERM));
}

TEST(LaunchTest, NothingOutlivesAKilledLauncher) {
  const std::unique_ptr<Process> launch =
      Start({}, {"--act=w0:wait", "--act=w1:stubborn", "--act=w2:wait"});
  std::vector<pollfd> programs;
  for (const char* who : {"server 0", "server 1", "worker 0", "worker 1", "worker 2"}) {
    programs.push_back(
        {.fd = testing::OpenPidfd(PidOf(*launch, who)), .events = POLLIN, .revents = 0});
  }
  launch->Kill(SIGKILL);
  for (pollfd& program : programs) {
    // A pidfd is readable when its program has ended.
    EXPECT_EQ(poll(&program, 1, static_cast<int>(absl::ToInt64Milliseconds(kLongEnough))), 1);
    close(program.fd);
  }
}

TEST(LaunchTest, SaysWhichProgramIsMissing) {
  const std::string output = RunGroup({"--worker_program=/no/such/worker"}, {}, ExitCode(1));
  EXPECT_THAT(output, HasSubstr("[launch] /no/such/worker: No such file or directory\n"));
}

TEST(LaunchTest, RefusesWhatIsNoFlag) {
  EXPECT_THAT(
      RunGroup({"3"}, {}, ExitCode(1)),
      HasSubstr("ps-launch: unexpected argument \"3\"; flags for the workers come after --"));
  EXPECT_THAT(RunGroup({"--on_worker_death=cry"}, {}, ExitCode(1)),
              HasSubstr("--on_worker_death is \"cry\", must be"));
  EXPECT_THAT(RunGroup({"--job=/no/such/file"}, {}, ExitCode(1)), HasSubstr("/no/such/file"));
}

TEST(LaunchTest, WithoutATerminalABarBecomesALine) {
  EXPECT_THAT(RunGroup({}, {"--act=w0:draw"}, ExitCode(0)),
              AllOf(HasSubstr("[worker 0] pipe step 3\n"), Not(HasSubstr("step 1"))));
}

// Runs `command` on a terminal of its own and returns what it prints. Returns nullopt if the system
// has no terminals, for example in a bare chroot.
std::optional<std::string> OutputOnATerminal(std::vector<std::string> command) {
  std::vector<char*> args;
  for (std::string& word : command) args.push_back(word.data());
  args.push_back(nullptr);
  winsize size = {.ws_row = 24, .ws_col = 60, .ws_xpixel = 0, .ws_ypixel = 0};
  int terminal;
  const pid_t pid = forkpty(&terminal, nullptr, nullptr, &size);
  if (pid < 0) return std::nullopt;
  if (pid == 0) {
    execv(args[0], args.data());
    _exit(127);
  }
  std::string output;
  char buffer[4096];
  for (ssize_t length; (length = read(terminal, buffer, sizeof(buffer))) > 0;) {
    output.append(buffer, length);
  }
  close(terminal);
  waitpid(pid, nullptr, 0);
  return output;
}

TEST(LaunchTest, OnATerminalTheFirstWorkerDrawsItsBar) {
  std::vector<std::string> command = {kLaunch};
  for (const std::string& arg : Args({}, {"--act=w0:draw"})) command.push_back(arg);
  const std::optional<std::string> output = OutputOnATerminal(command);
  if (!output.has_value()) GTEST_SKIP() << "no pseudo-terminal can be opened here";
  EXPECT_THAT(*output, HasSubstr("[worker 0] bar step 3"));
  EXPECT_THAT(*output, HasSubstr("[worker 1] arguments:"));
}

TEST(LaunchTest, StartsAWorkerAgainThatHasDied) {
  const std::string output = RunGroup(
      {"--on_worker_death=restart", "--job=tests/worker/launch/elastic.job", "--workers=1"},
      {"--act=w0:raise_once:9"}, ExitCode(0));
  EXPECT_THAT(output,
              AllOf(HasSubstr("worker 0 was killed by signal 9"), HasSubstr("; restarting it"),
                    HasSubstr("--only_running"), HasSubstr("--name=worker-0")));
}

TEST(LaunchTest, StartsNoWorkerAgainInAJobThatTakesNobodyIn) {
  EXPECT_THAT(RunGroup({"--on_worker_death=restart"}, {}, ExitCode(1)),
              HasSubstr("is not elastic: add elastic { }"));
}

}  // namespace
}  // namespace syncgrads
