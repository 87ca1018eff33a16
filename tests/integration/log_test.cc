// Tests of output that nobody reads. The log that ps-server writes to stderr disturbs no job; a
// worker that waits for its reader ends after a signal.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/cluster.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class LogTest : public ::testing::Test {
 protected:
  LogTest() {
    unlink(fifo_.c_str());
    EXPECT_EQ(mkfifo(fifo_.c_str(), 0600), 0);
    log_ = open(fifo_.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    EXPECT_GE(log_, 0);
    EXPECT_EQ(fcntl(log_, F_SETPIPE_SZ, 4096), 4096);
    const std::string page(4096, '.');
    while (write(log_, page.data(), page.size()) > 0) continue;
    EXPECT_EQ(errno, EAGAIN) << "the pipe is full";
    // Only stderr goes to the pipe. The test reads the server's address from stdout.
    auto server = Process::Start(
        {.program = "/bin/sh",
         .args = {"-c", "exec server/ps-server \"$@\" 2>\"$0\"", fifo_, "--port=0",
                  "--bind=127.0.0.1", "--state=none", "--lease=2m", "--log_lines=3"}});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  ~LogTest() override {
    server_.reset();
    close(log_);
    unlink(fifo_.c_str());
  }

  std::string Address() {
    const auto line = server_->WaitForLine("listening on ", kLongEnough);
    EXPECT_TRUE(line.ok()) << line.status();
    return line.ok() ? line->substr(line->rfind(' ') + 1) : "";
  }

  // Reads the pipe up to and including the line that contains `text`, and returns what was read.
  std::string ReadUpTo(const std::string& text) {
    const absl::Time deadline = absl::Now() + kLongEnough;
    std::string all;
    while (!absl::StrContains(all, text) && absl::Now() < deadline) {
      pollfd ready = {.fd = log_, .events = POLLIN, .revents = 0};
      poll(&ready, 1, 1000);
      char buffer[4096];
      const ssize_t length = read(log_, buffer, sizeof(buffer));
      if (length > 0) all.append(buffer, static_cast<size_t>(length));
    }
    return all;
  }

  const std::string fifo_ = TemporaryPath("log.fifo");
  int log_ = -1;
  std::unique_ptr<Process> server_;
};

TEST_F(LogTest, AJobTrainsWhileNobodyReadsIt) {
  const std::string address = Address();
  const std::string job = WriteLongJob("unread", 20);
  std::vector<std::unique_ptr<Process>> workers;
  for (int rank = 0; rank < 2; ++rank) {
    auto worker =
        Process::Start({.program = "worker/ps-worker",
                        .args = {absl::StrCat("--job=", job), absl::StrCat("--server=", address),
                                 absl::StrCat("--rank=", rank), "--world_size=2", "--timeout=2m"}});
    ASSERT_TRUE(worker.ok()) << worker.status();
    workers.push_back(*std::move(worker));
  }
  for (const auto& worker : workers) EXPECT_EQ(WaitFor(*worker), ExitCode(0)) << worker->output();
  const std::string log = ReadUpTo("log lines were dropped here");
  EXPECT_THAT(log, HasSubstr("log lines were dropped here"));
  EXPECT_THAT(log, HasSubstr("job \"unread\" opens for 2 workers"));
  EXPECT_THAT(log, Not(HasSubstr("is dropped:"))) << "a worker";
  server_->Kill(SIGTERM);
  EXPECT_EQ(WaitFor(*server_), ExitCode(0));
}

TEST_F(LogTest, AWorkerWhoseOutputNobodyReadsEndsAfterASignal) {
  const std::string address = Address();
  const auto worker =
      Process::Start({.program = "/bin/sh",
                      .args = {"-c", "exec worker/ps-worker \"$@\" >\"$0\"", fifo_,
                               absl::StrCat("--job=", WriteLongJob("endless", 100'000'000)),
                               absl::StrCat("--server=", address), "--rank=0", "--world_size=1",
                               "--stop_grace=1s"}});
  ASSERT_TRUE(worker.ok()) << worker.status();
  // After this collective, which is its first call after it has joined, the worker prints its first
  // line.
  ASSERT_TRUE(WaitUntil([&] {
    const auto status = RunProgram(
        {.program = "client/psctl/psctl", .args = {"status", absl::StrCat("--server=", address)}},
        kLongEnough);
    return status.ok() && absl::StrContains(status->output, "/hosts/");
  }));
  (*worker)->Kill(SIGTERM);
  EXPECT_EQ(WaitFor(**worker), ExitCode(143)) << (*worker)->output();
}

TEST_F(LogTest, TheServerEndsWhileNobodyReadsIt) {
  Address();
  server_->Kill(SIGTERM);
  EXPECT_EQ(WaitFor(*server_), ExitCode(0));
}

}  // namespace
}  // namespace syncgrads::testing
