#include "common/net/open_connections.h"

#include <fcntl.h>
#include <unistd.h>

#include <list>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/net/tcp_connection.h"

namespace syncgrads {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// An endpoint can be any text here.
class OpenConnectionsTest : public ::testing::Test {
 protected:
  // Adds a connection from 10.0.0.1.
  void Add(const TcpConnection& connection, const std::string& endpoint) {
    connections_.Add(connection.server, endpoint, "10.0.0.1");
  }

  std::vector<std::string> lines_;
  OpenConnections connections_{
      {.connections = 4, .connections_per_peer = 2, .calls_per_connection = 2},
      [this](const std::string& line) { lines_.push_back(line); }};
  std::list<OpenConnections::Call> calls_;
};

TEST_F(OpenConnectionsTest, AConnectionWithTooManyOpenCallsIsReset) {
  const TcpConnection one, other;
  Add(one, "10.0.0.1:1");
  Add(other, "10.0.0.1:2");
  for (int i = 0; i < 2; ++i) calls_.emplace_back(connections_, "10.0.0.1:1");
  for (int i = 0; i < 2; ++i) calls_.emplace_back(connections_, "10.0.0.1:2");
  EXPECT_FALSE(one.HasEnded());
  EXPECT_THAT(lines_, IsEmpty());
  calls_.emplace_back(connections_, "10.0.0.1:1");
  EXPECT_TRUE(one.HasEnded());
  EXPECT_FALSE(other.HasEnded());
  EXPECT_THAT(
      lines_,
      ElementsAre(HasSubstr("10.0.0.1:1 has begun 3 calls that have not ended; the limit is 2")));
  // Further ones are not worth a line.
  calls_.emplace_back(connections_, "10.0.0.1:1");
  EXPECT_EQ(lines_.size(), 1u);
}

TEST_F(OpenConnectionsTest, SoIsALaterOneOfTheSameEndpointWhileTheyAreOpen) {
  const TcpConnection one;
  Add(one, "10.0.0.1:1");
  for (int i = 0; i < 5; ++i) calls_.emplace_back(connections_, "10.0.0.1:1");
  EXPECT_TRUE(one.HasEnded());
  const TcpConnection later;
  Add(later, "10.0.0.1:1");
  calls_.emplace_back(connections_, "10.0.0.1:1");
  EXPECT_TRUE(later.HasEnded());
  calls_.clear();
  const TcpConnection last;
  Add(last, "10.0.0.1:1");
  calls_.emplace_back(connections_, "10.0.0.1:1");
  EXPECT_FALSE(last.HasEnded());
}

TEST_F(OpenConnectionsTest, CallsThatHaveEndedDoNotCount) {
  const TcpConnection one;
  Add(one, "10.0.0.1:1");
  for (int i = 0; i < 10; ++i) {
    calls_.emplace_back(connections_, "10.0.0.1:1");
    calls_.emplace_back(connections_, "10.0.0.1:1");
    calls_.clear();
  }
  EXPECT_FALSE(one.HasEnded());
}

TEST_F(OpenConnectionsTest, ADescriptorThatBelongsToAnotherConnectionByNowIsNotReset) {
  TcpConnection one;
  Add(one, "10.0.0.1:1");
  for (int i = 0; i < 2; ++i) calls_.emplace_back(connections_, "10.0.0.1:1");
  const TcpConnection later;
  // `one` has been closed, and its number is that of a copy of `later`.
  ASSERT_EQ(dup3(later.server.get(), one.server.get(), O_CLOEXEC), one.server.get());
  calls_.emplace_back(connections_, "10.0.0.1:1");
  EXPECT_FALSE(later.HasEnded());
}

TEST_F(OpenConnectionsTest, ClosedConnectionsDoNotCount) {
  const TcpConnection one;
  Add(one, "10.0.0.1:1");
  {
    const TcpConnection closed;
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
