#include "tests/fault/tcp_proxy.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "tests/fault/port_owner.h"

namespace syncgrads::fault {
namespace {

constexpr int kPatience = 60'000;  // milliseconds

uint16_t PortOfSocket(int fd) {
  sockaddr_in address = {};
  socklen_t length = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

// A server that returns the bytes that it receives; it serves one connection after the other.
class Echo {
 public:
  Echo() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~Echo() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  uint16_t port() const { return PortOfSocket(listener_); }

 private:
  void Run() {
    for (int fd; (fd = accept(listener_, nullptr, nullptr)) >= 0; close(fd)) {
      char buffer[4096];
      for (ssize_t length; (length = recv(fd, buffer, sizeof(buffer), 0)) > 0;) {
        if (send(fd, buffer, static_cast<size_t>(length), MSG_NOSIGNAL) < 0) break;
      }
    }
  }

  const int listener_;
  std::thread thread_;
};

class Connection {
 public:
  explicit Connection(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Connection() { close(fd_); }

  int fd() const { return fd_; }
  void Send(const std::string& text) const {
    EXPECT_EQ(send(fd_, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  // Returns `bytes` bytes, or fewer if the connection ends before.
  std::string Receive(size_t bytes) const {
    std::string text;
    while (text.size() < bytes && Readable(kPatience)) {
      char buffer[4096];
      const ssize_t length = recv(fd_, buffer, std::min(sizeof(buffer), bytes - text.size()), 0);
      if (length <= 0) break;
      text.append(buffer, static_cast<size_t>(length));
    }
    return text;
  }
  bool Readable(int milliseconds) const {
    pollfd wait = {.fd = fd_, .events = POLLIN, .revents = 0};
    return poll(&wait, 1, milliseconds) > 0;
  }
  // Returns true if the connection is broken now or within kPatience.
  bool IsBroken() const {
    char byte;
    return Readable(kPatience) && recv(fd_, &byte, 1, 0) <= 0;
  }

 private:
  const int fd_;
};

class TcpProxyTest : public ::testing::Test {
 protected:
  TcpProxyTest() {
    auto proxy = TcpProxy::Start([this](uint16_t) { return client_.load(); });
    EXPECT_TRUE(proxy.ok()) << proxy.status();
    proxy_ = *std::move(proxy);
    proxy_->SetUpstream(echo_.port());
  }

  Echo echo_;
  std::atomic<int> client_{0};  // the client of new connections
  std::unique_ptr<TcpProxy> proxy_;
};

TEST_F(TcpProxyTest, PassesBytesBothWays) {
  Connection connection(proxy_->port());
  const std::string text(300'000, 'x');
  std::thread sender([&] { connection.Send(text); });
  EXPECT_EQ(connection.Receive(text.size()), text);
  sender.join();
}

TEST_F(TcpProxyTest, PassesAnEndOn) {
  Connection connection(proxy_->port());
  connection.Send("last");
  shutdown(connection.fd(), SHUT_WR);
  EXPECT_EQ(connection.Receive(100), "last");  // the end of the connection follows
}

TEST_F(TcpProxyTest, ACutBreaksWhatThereIsAndWhatComes) {
  Connection before(proxy_->port());
  before.Send("a");
  EXPECT_EQ(before.Receive(1), "a");
  proxy_->SetLink(0, {.cut = true});
  EXPECT_TRUE(before.IsBroken());
  EXPECT_TRUE(Connection(proxy_->port()).IsBroken());
  proxy_->SetLink(0, {});
  Connection after(proxy_->port());
  after.Send("b");
  EXPECT_EQ(after.Receive(1), "b");
}

TEST_F(TcpProxyTest, ACutIsOfOneClient) {
  proxy_->SetLink(1, {.cut = true});
  Connection connection(proxy_->port());
  connection.Send("a");
  EXPECT_EQ(connection.Receive(1), "a");
  client_ = 1;
  EXPECT_TRUE(Connection(proxy_->port()).IsBroken());
}

TEST_F(TcpProxyTest, ABlackHoleKeepsWhatIsSentUntilItIsOver) {
  Connection connection(proxy_->port());
  connection.Send("a");
  EXPECT_EQ(connection.Receive(1), "a");
  proxy_->SetLink(0, {.black_hole = true});
  connection.Send("b");
  EXPECT_FALSE(connection.Readable(100));
  proxy_->SetLink(0, {});
  EXPECT_EQ(connection.Receive(1), "b");
}

TEST_F(TcpProxyTest, ADelayIsOfBothWays) {
  proxy_->SetLink(0, {.delay = absl::Milliseconds(40)});
  Connection connection(proxy_->port());
  const absl::Time sent = absl::Now();
  connection.Send("a");
  EXPECT_EQ(connection.Receive(1), "a");
  EXPECT_GE(absl::Now() - sent, absl::Milliseconds(80));
}

TEST_F(TcpProxyTest, AThrottledLinkTakesItsTime) {
  proxy_->SetLink(0, {.bytes_per_second = 100'000});
  Connection connection(proxy_->port());
  const absl::Time sent = absl::Now();
  connection.Send(std::string(20'000, 'x'));
  EXPECT_EQ(connection.Receive(20'000).size(), 20'000u);
  // The first bytes pass at once, without waiting for the throttle.
  EXPECT_GE(absl::Now() - sent, absl::Milliseconds(170));
}

TEST(PortOwnerTest, FindsTheProcessOfAConnection) {
  Echo echo;
  Connection connection(echo.port());
  EXPECT_EQ(FindOwner(PortOfSocket(connection.fd()), echo.port(), {1, getpid()}), 1);
  EXPECT_EQ(FindOwner(PortOfSocket(connection.fd()), echo.port(), {}), -1);
  EXPECT_EQ(FindOwner(1, echo.port(), {getpid()}), -1);
}

}  // namespace
}  // namespace syncgrads::fault
