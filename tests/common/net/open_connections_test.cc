#include "common/net/open_connections.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <list>
#include <string>
#include <vector>

#include "common/shm/pages.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A TCP connection. An endpoint can be any text here.
struct Connection {
  Connection() : client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const FileDescriptor listening(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listening.get(), name, length), 0);
    EXPECT_EQ(listen(listening.get(), 1), 0);
    EXPECT_EQ(getsockname(listening.get(), name, &length), 0);
    EXPECT_EQ(connect(client.get(), name, length), 0);
    server = FileDescriptor(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }

  // Whether the client sees that the connection was reset.
  bool IsReset() const {
    char byte;
    return recv(client.get(), &byte, 1, MSG_DONTWAIT) < 0 && errno == ECONNRESET;
  }

  FileDescriptor server, client;
};

class OpenConnectionsTest : public ::testing::Test {
 protected:
  // Adds a connection from 10.0.0.1.
  void Add(const Connection& connection, const std::string& endpoint) {
    connections_.Add(connection.server, endpoint, "10.0.0.1");
  }

  std::vector<std::string> lines_;
  OpenConnections connections_{
      {.connections = 4, .connections_per_peer = 2, .calls_per_connection = 2},
      [this](const std::string& line) { lines_.push_back(line); }};
  std::list<OpenConnections::Call> calls_;
};

TEST_F(OpenConnectionsTest, AConnectionWithTooManyOpenCallsIsReset) {
  const Connection one, other;
  Add(one, "10.0.0.1:1");
  Add(other, "10.0.0.1:2");
  for (int i = 0; i < 2; ++i) calls_.emplace_back(connections_, "10.0.0.1:1");
  for (int i = 0; i < 2; ++i) calls_.emplace_back(connections_, "10.0.0.1:2");
  EXPECT_FALSE(one.IsReset());
  EXPECT_THAT(lines_, IsEmpty());
  calls_.emplace_back(connections_, "10.0.0.1:1");
  EXPECT_TRUE(one.IsReset());
  EXPECT_FALSE(other.IsReset());
  EXPECT_THAT(
      lines_,
      ElementsAre(HasSubstr("10.0.0.1:1 has begun 3 calls that have not ended; the limit is 2")));
  // Further ones are not worth a line.
  calls_.emplace_back(connections_, "10.0.0.1:1");
  EXPECT_EQ(lines_.size(), 1u);
}

TEST_F(OpenConnectionsTest, SoIsALaterOneOfTheSameEndpointWhileTheyAreOpen) {
  const Connection one;
  Add(one, "10.0.0.1:1");
  for (int i = 0; i < 5; ++i) calls_.emplace_back(connections_, "10.0.0.1:1");
  EXPECT_TRUE(one.IsReset());
  const Connection later;
  Add(later, "10.0.0.1:1");
  calls_.emplace_back(connections_, "10.0.0.1:1");
  EXPECT_TRUE(later.IsReset());
  calls_.clear();
  const Connection last;
  Add(last, "10.0.0.1:1");
  calls_.emplace_back(connections_, "10.0.0.1:1");
  EXPECT_FALSE(last.IsReset());
}

TEST_F(OpenConnectionsTest, CallsThatHaveEndedDoNotCount) {
  const Connection one;
  Add(one, "10.0.0.1:1");
  for (int i = 0; i < 10; ++i) {
    calls_.emplace_back(connections_, "10.0.0.1:1");
    calls_.emplace_back(connections_, "10.0.0.1:1");
    calls_.clear();
  }
  EXPECT_FALSE(one.IsReset());
}

TEST_F(OpenConnectionsTest, ADescriptorThatBelongsToAnotherConnectionByNowIsNotReset) {
  Connection one;
  Add(one, "10.0.0.1:1");
  for (int i = 0; i < 2; ++i) calls_.emplace_back(connections_, "10.0.0.1:1");
  const Connection later;
  // `one` has been closed, and its number is that of a copy of `later`.
  ASSERT_EQ(dup3(later.server.get(), one.server.get(), O_CLOEXEC), one.server.get());
  calls_.emplace_back(connections_, "10.0.0.1:1");
  EXPECT_FALSE(later.IsReset());
}

TEST_F(OpenConnectionsTest, ClosedConnectionsDoNotCount) {
  const Connection one;
  Add(one, "10.0.0.1:1");
  {
    const Connection closed;
    Add(closed, "10.0.0.1:2");
    EXPECT_EQ(connections_.PastLimit("10.0.0.1"),
              "2 connections of 10.0.0.1 are open, the limit is 2");
    EXPECT_EQ(connections_.PastLimit("10.0.0.2"), "");
    EXPECT_EQ(connections_.size(), 2u);
  }
  EXPECT_EQ(connections_.size(), 1u);
  EXPECT_EQ(connections_.PastLimit("10.0.0.1"), "");
}

}  // namespace
}  // namespace syncgrads
