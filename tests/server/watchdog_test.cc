#include "server/watchdog.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/net/listening_sockets.h"
#include "common/tls/certificate_authority.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/cluster.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::server {
namespace {

using ::syncgrads::testing::Cluster;
using ::syncgrads::testing::WaitUntil;
using ::testing::HasSubstr;

// Watches a port until the watchdog has seen an answer, or found the server silent.
class Watched {
 public:
  Watched(HostPort address, absl::Duration interval, int attempts)
      : watchdog_(
            {std::move(address), interval, attempts}, [this] { ++answers_; },
            [this](const std::string& why) {
              MutexLock lock(mutex_);
              silence_ = why;
            }) {}

  bool AwaitAnswer() {
    return WaitUntil([this] { return answers_ > 0; });
  }
  // Empty if the server has not been silent.
  std::string AwaitSilence() {
    (void)WaitUntil([this] { return !silence().empty(); });
    return silence();
  }
  std::string silence() {
    MutexLock lock(mutex_);
    return silence_;
  }
  int answers() const { return answers_; }

 private:
  std::atomic<int> answers_ = 0;
  Mutex mutex_;
  std::string silence_ ABSL_GUARDED_BY(mutex_);
  Watchdog watchdog_;
};

TEST(WatchdogTest, AServerAnswers) {
  Cluster cluster(1);
  Watched watched({"0.0.0.0", cluster.server(0).port()}, absl::Minutes(1), 1);
  EXPECT_TRUE(watched.AwaitAnswer());
  EXPECT_EQ(watched.silence(), "");
}

TEST(WatchdogTest, AServerWithTlsAnswers) {
  std::string folder = absl::StrCat(::testing::TempDir(), "/watchdog-XXXXXX");
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const CertificateAuthority authority("a");
  std::ofstream(absl::StrCat(folder, "/ca.pem")) << authority.certificate();
  const auto issued = authority.Issue({"IP:127.0.0.1"});
  ASSERT_TRUE(issued.ok()) << issued.status();
  ASSERT_TRUE(issued->Write(absl::StrCat(folder, "/server")).ok());
  ServerOptions options;
  options.tls.certificate = absl::StrCat(folder, "/server.pem");
  options.tls.key = absl::StrCat(folder, "/server.key");
  options.tls.client_ca = absl::StrCat(folder, "/ca.pem");
  Cluster cluster(1, options);
  Watched watched({"127.0.0.1", cluster.server(0).port()}, absl::Minutes(1), 1);
  EXPECT_TRUE(watched.AwaitAnswer());
  EXPECT_EQ(watched.silence(), "");
}

TEST(WatchdogTest, AConnectionThatIsRefusedForALimitIsAnAnswer) {
  ServerOptions options;
  options.max_connections = 0;
  Cluster cluster(1, options);
  Watched watched({"127.0.0.1", cluster.server(0).port()}, absl::Minutes(1), 1);
  EXPECT_TRUE(watched.AwaitAnswer());
}

// The kernel accepts the connections, and no process takes them.
TEST(WatchdogTest, APortThatNobodyServesIsSilent) {
  const auto listening = ListenTcp({.bind = "127.0.0.1"});
  ASSERT_TRUE(listening.ok()) << listening.status();
  Watched watched({"127.0.0.1", listening->port}, absl::Milliseconds(10), 3);
  EXPECT_EQ(watched.AwaitSilence(),
            absl::StrCat("this server's own port, 127.0.0.1:", listening->port,
                         ", has answered none of 3 connections within 10ms"));
  EXPECT_EQ(watched.answers(), 0);
}

TEST(WatchdogTest, AClosedPortIsSilent) {
  auto listening = ListenTcp({.bind = "127.0.0.1"});
  ASSERT_TRUE(listening.ok()) << listening.status();
  const FileDescriptor& socket = listening->sockets[0];
  // The port stays taken, and is not listened on.
  ASSERT_EQ(shutdown(socket.get(), SHUT_RDWR), 0);
  Watched watched({"127.0.0.1", listening->port}, absl::Milliseconds(1), 2);
  EXPECT_THAT(watched.AwaitSilence(), HasSubstr("none of 2 connections"));
}

// The destructor would otherwise wait for the interval.
TEST(WatchdogTest, EndsWhileItWaitsForAnAnswer) {
  const auto listening = ListenTcp({.bind = "127.0.0.1"});
  ASSERT_TRUE(listening.ok()) << listening.status();
  Watched watched({"127.0.0.1", listening->port}, absl::Hours(1), 1);
  // Wait for its connection.
  EXPECT_TRUE(WaitUntil([&] {
    return FileDescriptor(accept(listening->sockets[0].get(), nullptr, nullptr)).valid();
  }));
}

}  // namespace
}  // namespace syncgrads::server
