#include "common/net/acceptor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/net/call_flood.h"
#include "common/net/listening_sockets.h"
#include "common/net/open_connections.h"
#include "common/net/strangers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"
#include "tests/testing/wait_until.h"

// Read by the thread sanitizer. OpenConnections looks at the numbers of descriptors that were
// handed on, to see whether they are closed. In this program, whose clients run in the same
// process, such a number may belong to a client's new socket, and the sanitizer takes the look for
// a data race.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:OpenConnections::ForgetClosedLocked";
}

namespace syncgrads {
namespace {

using ::syncgrads::testing::WaitUntil;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Unique among programs. Process ids are not unique among containers that share a network.
std::string UnixName() {
  std::random_device device;
  return absl::StrCat("syncgrads-acceptor-test-", absl::Hex(uint64_t{device()} << 32 | device()));
}

FileDescriptor NewSocket(int family = AF_INET) {
  return FileDescriptor(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
}

// The client end of a connection that the acceptor accepts or refuses.
class Client {
 public:
  explicit Client(FileDescriptor socket = NewSocket()) : socket_(std::move(socket)) {}

  bool Connect(uint16_t port, const std::string& from = "127.0.0.1") {
    const sockaddr_in own = AddressOf(from, 0), other = AddressOf("127.0.0.1", port);
    return bind(socket_.get(), reinterpret_cast<const sockaddr*>(&own), sizeof(own)) == 0 &&
           connect(socket_.get(), reinterpret_cast<const sockaddr*>(&other), sizeof(other)) == 0;
  }
  bool Connect(const std::string& unix_name) {
    sockaddr_un other = {};
    other.sun_family = AF_UNIX;
    std::memcpy(other.sun_path + 1, unix_name.data(), unix_name.size());
    return connect(
               socket_.get(), reinterpret_cast<const sockaddr*>(&other),
               static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + unix_name.size())) == 0;
  }
  // Waits for the byte that is sent on every accepted connection. Returns false if the connection
  // ends without it.
  bool IsTaken() {
    char byte;
    return read(socket_.get(), &byte, 1) == 1;
  }
  // Its address and port, after Connect.
  std::string Endpoint() const {
    sockaddr_in own = {};
    socklen_t length = sizeof(own);
    getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&own), &length);
    char address[INET_ADDRSTRLEN] = "";
    inet_ntop(AF_INET, &own.sin_addr, address, sizeof(address));
    return absl::StrCat(address, ":", ntohs(own.sin_port));
  }

 private:
  static sockaddr_in AddressOf(const std::string& address, uint16_t port) {
    sockaddr_in in = {};
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    inet_pton(AF_INET, address.c_str(), &in.sin_addr);
    return in;
  }

  FileDescriptor socket_;
};

// Whether a connection has ended that receives nothing otherwise.
bool HasEnded(int connection) {
  char byte;
  const ssize_t length = recv(connection, &byte, 1, MSG_DONTWAIT);
  return length == 0 || (length < 0 && errno != EAGAIN);
}

class AcceptorTest : public ::testing::Test {
 protected:
  void Listen(ConnectionLimits limits, Strangers* strangers = nullptr, CallsOfGrpc calls = {}) {
    auto listening = ListenTcp({.bind = "127.0.0.1"});
    ASSERT_THAT(listening, IsOk());
    port_ = listening->port;
    auto unix_socket = ListenUnix(unix_name_);
    ASSERT_THAT(unix_socket, IsOk());
    listening->sockets.push_back(*std::move(unix_socket));
    limits.connections_flag = "--max_connections";
    limits.connections_per_peer_flag = "--max_connections_per_peer";
    const auto warn = [this](const std::string& line) {
      MutexLock lock(mutex_);
      lines_.push_back(line);
    };
    connections_.emplace(std::move(limits), warn);
    acceptor_.emplace(std::move(listening->sockets), *connections_, strangers, std::move(calls),
                      warn, [this](FileDescriptor connection, bool is_local, size_t taker) {
                        EXPECT_LT(taker, Acceptor::kTakers);
                        sockaddr_storage own = {};
                        socklen_t length = sizeof(own);
                        getsockname(connection.get(), reinterpret_cast<sockaddr*>(&own), &length);
                        EXPECT_EQ(is_local, own.ss_family == AF_UNIX);
                        {
                          MutexLock lock(mutex_);
                          const char byte = 1;
                          send(connection.get(), &byte, 1,
                               MSG_NOSIGNAL);  // fails if the connection was cut
                          taken_.push_back(std::move(connection));
                        }
                        if (during_take_ != nullptr) during_take_();
                      });
  }

  bool IsTaken(const std::string& from = "127.0.0.1") {
    Client& client = clients_.emplace_back();
    return client.Connect(port_, from) && client.IsTaken();
  }
  bool IsTakenOverUnix() {
    Client& client = clients_.emplace_back(NewSocket(AF_UNIX));
    return client.Connect(unix_name_) && client.IsTaken();
  }
  // Calls IsTaken until it returns true, for a limited time.
  bool IsTakenInTheEnd(const std::string& from = "127.0.0.1") {
    return WaitUntil([&] {
      if (IsTaken(from)) return true;
      clients_.pop_back();  // gives its descriptor back
      return false;
    });
  }
  // Closes the oldest accepted connection at the server end.
  void CloseOne() {
    MutexLock lock(mutex_);
    taken_.erase(taken_.begin());
  }

  // What was logged.
  std::vector<std::string> lines() {
    MutexLock lock(mutex_);
    return lines_;
  }

  const std::string unix_name_ = UnixName();
  uint16_t port_ = 0;
  // Called when a connection has been taken, on the thread on which it was.
  std::function<void()> during_take_;
  std::list<Client> clients_;
  Mutex mutex_;
  std::vector<FileDescriptor> taken_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  std::optional<OpenConnections> connections_;
  std::optional<Acceptor> acceptor_;
};

TEST_F(AcceptorTest, ItsUnixSocketIsForItsUserOnly) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  Listen({});
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    constexpr uid_t nobody = 65534;
    if (setresuid(nobody, nobody, nobody) != 0) _exit(2);
    Client client(NewSocket(AF_UNIX));
    _exit(client.Connect(unix_name_) && !client.IsTaken() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "there is one user only in this sandbox";
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(IsTakenOverUnix());
  EXPECT_THAT(lines(), ElementsAre(HasSubstr("user 65534 has connected")));
}

TEST_F(AcceptorTest, HandsOnConnectionsOfAllItsSockets) {
  Listen({});
  EXPECT_TRUE(IsTaken());
  EXPECT_TRUE(IsTakenOverUnix());
  EXPECT_TRUE(IsTaken("127.0.0.2"));
}

TEST_F(AcceptorTest, ConnectionsPastTheLimitAreClosedUntilOneHasEnded) {
  Listen({.connections = 3});
  EXPECT_TRUE(IsTaken());
  EXPECT_TRUE(IsTaken("127.0.0.2"));
  EXPECT_TRUE(IsTakenOverUnix());
  EXPECT_FALSE(IsTaken("127.0.0.3"));
  EXPECT_FALSE(IsTakenOverUnix());
  EXPECT_THAT(lines(),
              Contains(HasSubstr("3 connections are open, the limit is 3 (--max_connections)")));
  CloseOne();
  EXPECT_TRUE(IsTakenInTheEnd("127.0.0.3"));
  EXPECT_FALSE(IsTaken());
}

TEST_F(AcceptorTest, CountsTheConnectionsThatAreOpen) {
  Listen({.connections = 7});
  EXPECT_EQ(connections_->size(), 0u);
  EXPECT_EQ(connections_->most(), 7u);
  EXPECT_TRUE(IsTaken());
  EXPECT_TRUE(IsTakenOverUnix());
  EXPECT_EQ(connections_->size(), 2u);
  CloseOne();
  EXPECT_EQ(connections_->size(), 1u);
}

TEST_F(AcceptorTest, OnePeersConnectionsLeaveRoomForOthers) {
  Listen({.connections_per_peer = 2});
  EXPECT_TRUE(IsTaken());
  EXPECT_TRUE(IsTaken());
  EXPECT_FALSE(IsTaken());
  EXPECT_THAT(
      lines(),
      Contains(HasSubstr(
          "2 connections of 127.0.0.1 are open, the limit is 2 (--max_connections_per_peer)")));
  // All loopback addresses are one peer.
  EXPECT_FALSE(IsTaken("127.0.0.2"));
  EXPECT_TRUE(IsTakenOverUnix());
  CloseOne();
  EXPECT_TRUE(IsTakenInTheEnd());
  EXPECT_FALSE(IsTaken());
}

TEST_F(AcceptorTest, AFurtherStrangerTakesThePlaceOfTheOldest) {
  Strangers strangers;
  Listen({.connections = 12}, &strangers);
  EXPECT_TRUE(IsTaken());
  EXPECT_TRUE(IsTaken("127.0.0.2"));
  EXPECT_TRUE(IsTakenOverUnix());
  EXPECT_EQ(strangers.size(), 2u);
  EXPECT_TRUE(IsTaken("127.0.0.2"));
  EXPECT_EQ(strangers.size(), 2u);
  EXPECT_THAT(lines(), ElementsAre(HasSubstr("makes room: 2 connections of 127.0.0.1")));
  acceptor_.reset();
}

TEST_F(AcceptorTest, StrangersAreCutInTime) {
  Strangers strangers({.bytes = 1000, .time = absl::Milliseconds(1)});
  Listen({}, &strangers);
  Client client;
  EXPECT_TRUE(client.Connect(port_));
  EXPECT_TRUE(WaitUntil([&] { return !lines().empty(); }));
  EXPECT_EQ(strangers.size(), 0u);
  EXPECT_THAT(lines(), ElementsAre(HasSubstr("was admitted to nothing within 1ms")));
  acceptor_.reset();
}

TEST_F(AcceptorTest, AConnectionThatFloodsWithCallsIsCut) {
  std::atomic<int64_t> begun = 0;
  std::string endpoint;
  Listen({}, nullptr,
         {[&] { return begun += 10'000; },
          [&] {
            MutexLock lock(mutex_);
            return std::map<std::string, int64_t>{{endpoint, begun}};
          }});
  Client client;
  ASSERT_TRUE(client.Connect(port_) && client.IsTaken());
  {
    MutexLock lock(mutex_);
    endpoint = client.Endpoint();
  }
  EXPECT_FALSE(client.IsTaken()) << "it has to end";
  EXPECT_TRUE(WaitUntil([&] { return !lines().empty(); }));
  EXPECT_THAT(lines(), ElementsAre(AllOf(HasSubstr("connections are cut"),
                                         HasSubstr(client.Endpoint() + " has begun"))));
  acceptor_.reset();
}

TEST_F(AcceptorTest, AStrangerIsCutWhileItIsTakenAndOthersAreTaken) {
  Strangers strangers({.bytes = 1000, .time = absl::Milliseconds(1)});
  std::atomic<int> taken = 0;
  std::atomic<bool> others_went_on = false, has_ended = false;
  during_take_ = [&] {
    if (++taken > 1) return;
    others_went_on = WaitUntil([&] { return taken > 1 && !lines().empty(); });
    has_ended = true;
  };
  Listen({}, &strangers);
  Client first, second;
  EXPECT_TRUE(first.Connect(port_));
  EXPECT_TRUE(second.Connect(port_));
  EXPECT_TRUE(WaitUntil([&] { return has_ended.load(); }));
  acceptor_.reset();
  EXPECT_TRUE(others_went_on);
}

TEST_F(AcceptorTest, ConnectionsThatAreTakenWithoutEndMakeRoomForOthers) {
  std::atomic<size_t> calls = 0;
  during_take_ = [&] {
    const size_t number = calls++;
    if (number >= Acceptor::kTakers) return;
    const int connection = [&] {
      MutexLock lock(mutex_);
      return taken_[number].get();
    }();
    EXPECT_TRUE(WaitUntil([&] { return HasEnded(connection); }));
  };
  Listen({});
  for (size_t i = 0; i <= Acceptor::kTakers; ++i) EXPECT_TRUE(IsTaken());
  EXPECT_THAT(lines(), Contains(HasSubstr("has sent without a pause for")));
  acceptor_.reset();
}

TEST_F(AcceptorTest, AUnixSocketsConnectionsAreOfNoPeer) {
  Listen({.connections_per_peer = 1});
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(IsTakenOverUnix());
}

TEST_F(AcceptorTest, RefusalsAreSaidOnceInAWhile) {
  Listen({.connections = 1});
  EXPECT_TRUE(IsTaken());
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(IsTaken());
  // One line every 10 s; usually it is one line in all.
  EXPECT_LT(lines().size(), 10u);
}

TEST_F(AcceptorTest, GoesOnAfterTheProcessWasOutOfDescriptors) {
  Listen({});
  EXPECT_TRUE(IsTaken());
  // Sockets opened now need no descriptor when they connect later.
  std::vector<Client> early(10);
  const rlimit before = [] {
    rlimit limit = {};
    getrlimit(RLIMIT_NOFILE, &limit);
    return limit;
  }();
  rlimit few = before;
  few.rlim_cur = 256;
  setrlimit(RLIMIT_NOFILE, &few);
  std::vector<FileDescriptor> files;
  do {
    files.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  } while (files.back().valid());

  for (Client& client : early) {
    EXPECT_TRUE(client.Connect(port_));
    EXPECT_FALSE(client.IsTaken());
  }
  EXPECT_THAT(lines(), Contains(HasSubstr("Too many open files")));

  files.clear();
  EXPECT_TRUE(IsTakenInTheEnd());
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST_F(AcceptorTest, AConnectionThatIsStillBeingTakenDoesNotHoldUpItsEnd) {
  std::atomic<bool> is_being_taken = false, was_reset = false;
  during_take_ = [&] {
    is_being_taken = true;
    // As gRPC, which reads as long as there is something to read.
    const int connection = [this] {
      MutexLock lock(mutex_);
      return taken_.front().get();
    }();
    was_reset = WaitUntil([&] { return HasEnded(connection); });
  };
  Listen({});
  Client client;
  EXPECT_TRUE(client.Connect(port_));
  EXPECT_TRUE(WaitUntil([&] { return is_being_taken.load(); }));
  acceptor_.reset();
  EXPECT_TRUE(was_reset);
}

TEST_F(AcceptorTest, ListensNoMoreWhenItIsGone) {
  Listen({});
  EXPECT_TRUE(IsTaken());
  acceptor_.reset();
  // From another address: a client that is given the port itself would connect to itself.
  EXPECT_FALSE(Client().Connect(port_, "127.0.0.2"));
  EXPECT_FALSE(Client(NewSocket(AF_UNIX)).Connect(unix_name_));
  MutexLock lock(mutex_);
  const char byte = 1;
  EXPECT_EQ(write(taken_.front().get(), &byte, 1), 1);  // the connection is still open
}

}  // namespace
}  // namespace syncgrads
