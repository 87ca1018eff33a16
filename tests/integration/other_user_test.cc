// Another user of the host can neither read, nor block, nor damage a server. The attempts are made
// by a process of the user nobody, so this test needs root and must not run in a sandbox.

#include "tests/testing/other_user.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/security/credentials.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/control.grpc.pb.h"
#include "tests/integration/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// An abstract unix socket.
struct AbstractSocket {
  std::string name;
  int type = 0;
};

// Returns the abstract sockets on which the process listens.
std::vector<AbstractSocket> SocketsOf(pid_t pid) {
  std::vector<AbstractSocket> sockets;
  std::ifstream all("/proc/net/unix");
  for (std::string line; std::getline(all, line);) {
    const size_t at = line.find(" @syncgrads-");
    if (at == std::string::npos) continue;
    const std::string name = line.substr(at + 2);
    const bool listens = absl::StrContains(line, " 00010000 ");
    if (!listens || !absl::StrContains(name, absl::StrCat("-", pid, "-"))) continue;
    sockets.push_back(
        {name, absl::StrContains(line, " 00010000 0005 ") ? SOCK_SEQPACKET : SOCK_STREAM});
  }
  return sockets;
}

// Connects to the socket. Returns nullopt if it is full.
std::optional<int> ConnectTo(const AbstractSocket& socket) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, socket.name.data(), socket.name.size());
  const int connection = ::socket(AF_UNIX, socket.type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (connect(connection, reinterpret_cast<const sockaddr*>(&address),
              static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + socket.name.size())) ==
      0) {
    return connection;
  }
  close(connection);
  return std::nullopt;
}

// Returns an address of this host that is no loopback address.
std::optional<in_addr> OwnAddress() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return std::nullopt;
  std::optional<in_addr> found;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    const in_addr address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr;
    if (ntohl(address.s_addr) >> 24 != IN_LOOPBACKNET) found = address;
  }
  freeifaddrs(all);
  return found;
}

// Connects to an address of IPv4 with a port, from the given address.
int ConnectTo(const std::string& address, in_addr from = {}) {
  const size_t colon = address.rfind(':');
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
  const int connection = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in own = {};
  own.sin_family = AF_INET;
  own.sin_addr = from;
  bind(connection, reinterpret_cast<const sockaddr*>(&own), sizeof(own));
  connect(connection, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
  return connection;
}

class OtherUserTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
    if (OtherUser self([](int) { return std::string(); }); !self.Result().empty()) {
      GTEST_SKIP() << "there is one user only in this sandbox";
    }
    ASSERT_NE(mkdtemp(shared_.data()), nullptr);
    ASSERT_EQ(chmod(shared_.c_str(), 01777), 0);  // as /tmp and /dev/shm
  }
  ~OtherUserTest() override { std::filesystem::remove_all(shared_); }

  // Starts a server with its state in the shared directory, and a job that checks its results.
  void StartServer(std::vector<std::string> flags = {}) {
    state_ = shared_ + "/state";
    flags.push_back(absl::StrCat("--state=", state_));
    cluster_ = std::make_unique<Cluster>(1, flags);
    honest_ = Start("tests/fault/honest");
    ASSERT_TRUE(honest_->WaitForLine("step 100", kLongEnough).ok()) << honest_->output();
  }
  std::unique_ptr<Process> Start(const std::string& program) const {
    auto process = Process::Start(
        {.program = program, .args = {absl::StrCat("--server=", cluster_->coordinator())}});
    EXPECT_TRUE(process.ok()) << process.status();
    return *std::move(process);
  }
  // The job has received correct results only.
  void ExpectHonestJobEnds() {
    honest_->Kill(SIGTERM);
    EXPECT_EQ(WaitFor(*honest_), ExitCode(0)) << honest_->output();
  }

  // The last six characters are replaced in SetUp.
  std::string shared_ = "/tmp/syncgrads-other-user-XXXXXX";
  std::string state_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<Process> honest_;
};

TEST_F(OtherUserTest, ReadsAndChangesNothingOfAServer) {
  StartServer();
  const pid_t pid = cluster_->server(0).pid();
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(state_)) {
    files.push_back(entry.path().string());
  }
  EXPECT_THAT(files, Not(SizeIs(0)));
  OtherUser other([&](int) {
    std::string succeeded;
    const auto attempt = [&](const std::string& what, int result) {
      if (result < 0 && (errno == EACCES || errno == EPERM)) return;
      absl::StrAppend(&succeeded, what, result < 0 ? std::strerror(errno) : "", "\n");
    };
    for (const std::string& file : files) {
      attempt("read " + file, open(file.c_str(), O_RDONLY | O_CLOEXEC));
      attempt("write " + file, open(file.c_str(), O_WRONLY | O_CLOEXEC));
      attempt("cut " + file, truncate(file.c_str(), 0));
      attempt("delete " + file, unlink(file.c_str()));
      attempt("move " + file, rename(file.c_str(), "/tmp/stolen"));
    }
    attempt("list " + state_, open(state_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    attempt("create in " + state_, mkdir((state_ + "/planted").c_str(), 0700));
    attempt("move " + state_, rename(state_.c_str(), "/tmp/stolen"));
    const std::string process = absl::StrCat("/proc/", pid);
    for (const char* secret : {"/mem", "/environ", "/maps", "/fd", "/map_files"}) {
      attempt("read " + process + secret, open((process + secret).c_str(), O_RDONLY | O_CLOEXEC));
    }
    attempt("stop the server", kill(pid, SIGSTOP));
    attempt("end the server", kill(pid, SIGTERM));
    attempt("trace the server", static_cast<int>(ptrace(PTRACE_ATTACH, pid, nullptr, nullptr)));
    return succeeded;
  });
  EXPECT_THAT(other.Result(), IsEmpty());
  ExpectHonestJobEnds();
}

TEST_F(OtherUserTest, IsRefusedAtTheUnixSocketsAndHoldsUpNobody) {
  StartServer();
  const std::vector<AbstractSocket> sockets = SocketsOf(cluster_->server(0).pid());
  ASSERT_THAT(sockets, SizeIs(2)) << "one for streams, one for shared memory";
  OtherUser other([&](int end) {
    // Connects as often as possible, and keeps the newest connections.
    std::vector<int> kept;
    pollfd polled = {end, 0, 0};
    for (size_t i = 0; poll(&polled, 1, 0) == 0; ++i) {
      const auto connection = ConnectTo(sockets[i % sockets.size()]);
      if (!connection.has_value()) continue;
      kept.push_back(*connection);
      if (kept.size() < 200) continue;
      close(kept.front());
      kept.erase(kept.begin());
    }
    // All have been closed by the server. At most, the reason was sent.
    std::string answers;
    for (const int one : kept) {
      pollfd readable = {one, POLLIN, 0};
      char answer[1024] = "";
      if (poll(&readable, 1, 60000) != 1) return std::string("a connection stays open");
      if (recv(one, answer, sizeof(answer) - 1, 0) > 0 && !absl::StrContains(answer, "as user")) {
        absl::StrAppend(&answers, answer, "\n");
      }
    }
    return answers;
  });
  ASSERT_TRUE(cluster_->server(0)
                  .WaitForLine("user 65534 has connected to the unix socket", kLongEnough)
                  .ok())
      << cluster_->server(0).output();
  // A job that begins now shares memory with the server.
  const std::unique_ptr<Process> visitor = Start("tests/fault/visitor");
  EXPECT_EQ(WaitFor(*visitor), ExitCode(0)) << visitor->output();
  EXPECT_THAT(other.Result(), IsEmpty());
  ExpectHonestJobEnds();
}

TEST_F(OtherUserTest, IsAdmittedToNothingAtThePortAndHoldsUpNobody) {
  StartServer({"--max_connections=40"});
  const std::string address = cluster_->coordinator();
  OtherUser other([&](int end) {
    // Connects more often than the server permits all of its peers together.
    std::vector<int> kept;
    for (int i = 0; i < 100; ++i) kept.push_back(ConnectTo(address));
    std::string answers;
    const auto stub =
        v1::Control::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    for (int i = 0; i < 3; ++i) {
      grpc::ClientContext context;
      context.set_deadline(absl::ToChronoTime(absl::Now() + kLongEnough));
      context.set_wait_for_ready(true);
      v1::ProbeReply reply;
      const grpc::Status probed = stub->Probe(&context, {}, &reply);
      if (probed.error_code() != grpc::StatusCode::PERMISSION_DENIED ||
          !absl::StrContains(probed.error_message(), "user 65534 of this host")) {
        absl::StrAppend(&answers, "a call ended with ", probed.error_code(), ": ",
                        probed.error_message(), "\n");
      }
      // Its place was taken by the connections above; those of the call need one too.
      close(kept.back());
      kept.pop_back();
    }
    pollfd polled = {end, 0, 0};
    poll(&polled, 1, -1);
    return answers;
  });
  ASSERT_TRUE(
      cluster_->server(0).WaitForLine("connections of user 65534 of this host", kLongEnough).ok())
      << cluster_->server(0).output();
  const std::unique_ptr<Process> visitor = Start("tests/fault/visitor");
  EXPECT_EQ(WaitFor(*visitor), ExitCode(0)) << visitor->output();
  EXPECT_THAT(other.Result(), IsEmpty());
  ExpectHonestJobEnds();
}

TEST_F(OtherUserTest, IsRefusedAlsoIfItConnectsFromAnAddressThatIsNoLoopbackAddress) {
  const std::optional<in_addr> from = OwnAddress();
  if (!from.has_value()) GTEST_SKIP() << "this host has loopback addresses only";
  StartServer();
  OtherUser other([&](int) {
    const int connection = ConnectTo(cluster_->coordinator(), *from);
    fcntl(connection, F_SETFL, O_NONBLOCK);
    const auto stub = v1::Control::NewStub(grpc::CreateInsecureChannelFromFd("server", connection));
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kLongEnough));
    v1::ProbeReply reply;
    const grpc::Status probed = stub->Probe(&context, {}, &reply);
    const bool is_refused = probed.error_code() == grpc::StatusCode::PERMISSION_DENIED;
    return is_refused ? "" : absl::StrCat("the call ended with ", probed.error_code());
  });
  EXPECT_THAT(other.Result(), IsEmpty());
  ExpectHonestJobEnds();
}

TEST_F(OtherUserTest, PlantsNoStateDirectory) {
  const std::string victim = shared_ + "/victim";
  std::filesystem::create_directory(victim);
  ASSERT_EQ(chmod(victim.c_str(), 0755), 0);
  std::ofstream(victim + "/lock") << "not to be overwritten";
  OtherUser other([&](int) {
    mkdir((shared_ + "/planted").c_str(), 0777);
    const int linked = symlink(victim.c_str(), (shared_ + "/link").c_str());
    return std::string(linked == 0 ? "" : "no link");
  });
  EXPECT_THAT(other.Result(), IsEmpty());
  for (const char* planted : {"/planted", "/planted/state", "/link", "/link/state"}) {
    const auto run = RunProgram({.program = "server/ps-server",
                                 .args = {"--port=0", absl::StrCat("--state=", shared_, planted)}},
                                kLongEnough);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_NE(run->exit, ExitCode(0));
    EXPECT_THAT(run->output, HasSubstr("belongs to user 65534"));
  }
  EXPECT_EQ(ReadFileOrDie(victim + "/lock"), "not to be overwritten");
  for (const auto& entry : std::filesystem::directory_iterator(victim)) {
    EXPECT_EQ(entry.path().filename(), "lock");
  }
  struct stat status = {};
  ASSERT_EQ(stat(victim.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0755u);
}

}  // namespace
}  // namespace syncgrads::testing
