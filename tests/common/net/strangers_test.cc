#include "common/net/strangers.h"

#include <arpa/inet.h>
#include <linux/socket.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/net/peer_user.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"
#include "tests/common/net/tcp_connection.h"
#include "tests/testing/wait_until.h"

namespace syncgrads {
namespace {

using ::syncgrads::testing::WaitUntil;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;

constexpr absl::Duration kNow = absl::ZeroDuration();

constexpr StrangerLimits kLimits = {
    .bytes = 1000, .bytes_with_stream = 5000, .time = absl::Seconds(60), .grace = kNow};

TEST(StrangersTest, ASilentConnectionHasLimitedTime) {
  Strangers strangers(kLimits);
  const TcpConnection connection;
  ASSERT_TRUE(strangers.Add(connection.server, "10.0.0.1:5", "10.0.0.1", {}));
  EXPECT_THAT(strangers.Cut(absl::Seconds(59)), IsEmpty());
  EXPECT_FALSE(connection.HasEnded());
  EXPECT_THAT(strangers.Cut(absl::Seconds(2)),
              ElementsAre("10.0.0.1:5 was admitted to nothing within 1m"));
  EXPECT_TRUE(connection.HasEnded());
  EXPECT_EQ(strangers.size(), 0u);
}

TEST(StrangersTest, BytesAreLimitedAndMoreWithAStream) {
  Strangers strangers(kLimits);
  TcpConnection connection;
  ASSERT_TRUE(strangers.Add(connection.server, "10.0.0.1:5", "10.0.0.1", {}));
  connection.Transfer(1000);
  EXPECT_THAT(strangers.Cut(kNow), IsEmpty());
  strangers.Begin("10.0.0.1:5");
  connection.Transfer(4000);
  EXPECT_THAT(strangers.Cut(kNow), IsEmpty());
  connection.Transfer(1);
  EXPECT_THAT(strangers.Cut(kNow),
              ElementsAre("10.0.0.1:5 was admitted to nothing and has sent 5001 bytes; the limit "
                          "is 5000"));
  EXPECT_TRUE(connection.HasEnded());
}

TEST(StrangersTest, StreamsAreLimited) {
  Strangers strangers({.streams = 2});
  TcpConnection connection;
  ASSERT_TRUE(strangers.Add(connection.server, "10.0.0.1:5", "10.0.0.1", {}));
  for (int i = 0; i < 2; ++i) strangers.Begin("10.0.0.1:5");
  EXPECT_THAT(strangers.Cut(kNow), IsEmpty());
  EXPECT_FALSE(connection.HasEnded());
  strangers.Begin("10.0.0.1:5");
  EXPECT_TRUE(connection.HasEnded());
  EXPECT_THAT(
      strangers.Cut(kNow),
      ElementsAre("10.0.0.1:5 was admitted to nothing and has begun 3 streams; the limit is 2"));
  EXPECT_EQ(strangers.size(), 0u);
}

TEST(StrangersTest, AStreamMayBeginAfterItsBytesWereRead) {
  Strangers strangers({.bytes = 1000, .grace = absl::Milliseconds(30)});
  TcpConnection late, never;
  ASSERT_TRUE(strangers.Add(late.server, "10.0.0.1:5", "10.0.0.1", {}));
  ASSERT_TRUE(strangers.Add(never.server, "10.0.0.1:6", "10.0.0.1", {}));
  late.Transfer(1001);
  never.Transfer(1001);
  EXPECT_THAT(strangers.Cut(absl::Milliseconds(10)), IsEmpty());
  EXPECT_THAT(strangers.Cut(absl::Milliseconds(20)), IsEmpty());
  strangers.Begin("10.0.0.1:5");
  EXPECT_THAT(strangers.Cut(absl::Milliseconds(10)), ElementsAre(HasSubstr("10.0.0.1:6")));
  EXPECT_FALSE(late.HasEnded());
}

TEST(StrangersTest, WithAStreamItMustBeAdmittedSoonAfterItHasSentMuch) {
  Strangers strangers({.bytes = 1000, .grace_with_stream = absl::Milliseconds(500)});
  TcpConnection little, much, admitted;
  ASSERT_TRUE(strangers.Add(little.server, "10.0.0.1:5", "10.0.0.1", {}));
  ASSERT_TRUE(strangers.Add(much.server, "10.0.0.1:6", "10.0.0.1", {}));
  ASSERT_TRUE(strangers.Add(admitted.server, "10.0.0.1:7", "10.0.0.1", {}));
  for (const char* endpoint : {"10.0.0.1:5", "10.0.0.1:6", "10.0.0.1:7"}) strangers.Begin(endpoint);
  little.Transfer(1000);
  much.Transfer(1001);
  admitted.Transfer(1001);
  EXPECT_THAT(strangers.Cut(absl::Milliseconds(10)), IsEmpty());
  EXPECT_THAT(strangers.Cut(absl::Milliseconds(490)), IsEmpty());
  strangers.Admit("10.0.0.1:7");
  EXPECT_THAT(strangers.Cut(absl::Milliseconds(10)),
              ElementsAre("10.0.0.1:6 was admitted to nothing within 500ms after it had sent more "
                          "than 1000 bytes"));
  EXPECT_TRUE(much.HasEnded());
  EXPECT_FALSE(admitted.HasEnded());
  EXPECT_FALSE(little.HasEnded());
}

TEST(StrangersTest, TheBufferOfWhatWasNotReadDoesNotGrow) {
  const TcpConnection connection;
  const auto is_locked = [&]() -> std::optional<bool> {
    int locks = 0;
    socklen_t length = sizeof(locks);
    if (getsockopt(connection.server.get(), SOL_SOCKET, SO_BUF_LOCK, &locks, &length) != 0)
      return {};
    return (locks & SOCK_RCVBUF_LOCK) != 0;
  };
  if (!is_locked().has_value()) GTEST_SKIP() << "Linux 5.14 is the first that can do this";
  EXPECT_THAT(is_locked(), Optional(false));
  Strangers strangers;
  ASSERT_TRUE(strangers.Add(connection.server, "10.0.0.1:5", "10.0.0.1", {}));
  EXPECT_THAT(is_locked(), Optional(true));
  strangers.Admit("10.0.0.1:5");
  EXPECT_THAT(is_locked(), Optional(false));
}

TEST(StrangersTest, WhatWasNotReadIsDropped) {
  Strangers strangers(kLimits);
  TcpConnection connection;
  ASSERT_TRUE(strangers.Add(connection.server, "10.0.0.1:5", "10.0.0.1", {}));
  connection.Transfer(1001);
  ASSERT_EQ(send(connection.client.get(), "more", 4, 0), 4);
  EXPECT_EQ(strangers.Cut(kNow).size(), 1u);
  char byte;
  EXPECT_LE(recv(connection.server.get(), &byte, 1, 0), 0);
}

TEST(StrangersTest, BytesThatTheServerHasNotReadDoNotCount) {
  Strangers strangers(kLimits);
  const TcpConnection connection;
  ASSERT_TRUE(strangers.Add(connection.server, "10.0.0.1:5", "10.0.0.1", {}));
  const std::string many(2000, 'x');
  ASSERT_EQ(send(connection.client.get(), many.data(), many.size(), 0), 2000);
  char byte;
  ASSERT_EQ(recv(connection.server.get(), &byte, 1, 0), 1);
  EXPECT_THAT(strangers.Cut(kNow), IsEmpty());
}

TEST(StrangersTest, WhoWasAdmittedMaySendAnything) {
  Strangers strangers(kLimits);
  TcpConnection connection;
  ASSERT_TRUE(strangers.Add(connection.server, "10.0.0.1:5", "10.0.0.1", {}));
  strangers.Admit("10.0.0.1:5");
  connection.Transfer(10000);
  EXPECT_THAT(strangers.Cut(absl::Hours(1)), IsEmpty());
  EXPECT_FALSE(connection.HasEnded());
}

TEST(StrangersTest, ForgetsConnectionsThatHaveEnded) {
  Strangers strangers(kLimits);
  TcpConnection connection;
  ASSERT_TRUE(strangers.Add(connection.server, "10.0.0.1:5", "10.0.0.1", {}));
  // As gRPC does.
  shutdown(connection.server.get(), SHUT_RDWR);
  connection.server = FileDescriptor();
  EXPECT_TRUE(WaitUntil([&] {
    EXPECT_THAT(strangers.Cut(kNow), IsEmpty());
    return strangers.size() == 0;
  }));
}

TEST(StrangersTest, TheOldestOfTheNetworkWithMostMakesRoom) {
  Strangers strangers(kLimits);
  EXPECT_EQ(strangers.CutOldest(), std::nullopt);
  const TcpConnection first, flood_1, flood_2;
  ASSERT_TRUE(strangers.Add(first.server, "10.0.0.1:5", "10.0.0.1", {}));
  ASSERT_TRUE(strangers.Add(flood_1.server, "10.0.0.2:5", "10.0.0.2", {}));
  ASSERT_TRUE(strangers.Add(flood_2.server, "10.0.0.2:6", "10.0.0.2", {}));
  EXPECT_THAT(strangers.CutOldest(),
              Optional(std::string("10.0.0.2:5 makes room: 2 connections of "
                                   "10.0.0.2 were admitted to nothing yet")));
  EXPECT_FALSE(first.HasEnded());
  EXPECT_TRUE(flood_1.HasEnded());
  EXPECT_FALSE(flood_2.HasEnded());
}

TEST(StrangersTest, KnowsOtherUsers) {
  Strangers strangers(kLimits);
  const TcpConnection own, other;
  ASSERT_TRUE(strangers.Add(own.server, "127.0.0.1:5", "127.0.0.1", {}));
  ASSERT_TRUE(strangers.Add(other.server, "127.0.0.1:6", "user 7", 7));
  EXPECT_EQ(strangers.OtherUserOf("127.0.0.1:5"), std::nullopt);
  EXPECT_THAT(strangers.OtherUserOf("127.0.0.1:6"), Optional(7u));
}

// What they have sent may be handled after their connections have ended.
TEST(StrangersTest, KnowsOtherUsersForAWhileAfterTheyHaveGone) {
  Strangers strangers({.time = absl::Seconds(60)});
  TcpConnection ended, cut, ours, admitted;
  ASSERT_TRUE(strangers.Add(ended.server, "127.0.0.1:1", "user 7", 7));
  ASSERT_TRUE(strangers.Add(ours.server, "127.0.0.1:2", "127", std::nullopt));
  ASSERT_TRUE(strangers.Add(admitted.server, "127.0.0.1:3", "user 8", 8));
  strangers.Admit("127.0.0.1:3");
  ResetConnection(ended.server.get());
  ResetConnection(ours.server.get());
  EXPECT_THAT(strangers.Cut(kNow), IsEmpty());
  EXPECT_EQ(strangers.size(), 0u);
  ASSERT_TRUE(strangers.Add(cut.server, "127.0.0.1:4", "user 9", 9));
  EXPECT_TRUE(strangers.CutOldest().has_value());
  EXPECT_THAT(strangers.OtherUserOf("127.0.0.1:1"), Optional(7u));
  EXPECT_EQ(strangers.OtherUserOf("127.0.0.1:2"), std::nullopt);
  EXPECT_EQ(strangers.OtherUserOf("127.0.0.1:3"), std::nullopt);
  EXPECT_THAT(strangers.OtherUserOf("127.0.0.1:4"), Optional(9u));
  strangers.Cut(absl::Seconds(61));
  EXPECT_EQ(strangers.OtherUserOf("127.0.0.1:1"), std::nullopt);
  // Another connection with the same address.
  TcpConnection later;
  ASSERT_TRUE(strangers.Add(later.server, "127.0.0.1:4", "127", std::nullopt));
  EXPECT_EQ(strangers.OtherUserOf("127.0.0.1:4"), std::nullopt);
}

class PeerUserTest : public ::testing::TestWithParam<int> {};

TEST_P(PeerUserTest, TheUserOfAConnectionIsFound) {
  const TcpConnection connection(GetParam());
  const absl::StatusOr<unsigned> user =
      UserOfTcpPeer(NameOf(getpeername, connection.server), NameOf(getsockname, connection.server));
  ASSERT_THAT(user, IsOk());
  EXPECT_EQ(*user, geteuid());
}

TEST_P(PeerUserTest, AnotherUserIsFound) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  constexpr uid_t kNobody = 65534;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (setresuid(kNobody, kNobody, kNobody) != 0) _exit(2);
    const TcpConnection connection(GetParam());
    const absl::StatusOr<unsigned> user = UserOfTcpPeer(NameOf(getpeername, connection.server),
                                                        NameOf(getsockname, connection.server));
    _exit(user.ok() && *user == kNobody ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "there is one user only in this sandbox";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Closed sockets belong to nobody, and the kernel says that they are root's.
TEST_P(PeerUserTest, AConnectionThatThePeerHasClosedHasNoUser) {
  TcpConnection connection(GetParam());
  const sockaddr_storage peer = NameOf(getpeername, connection.server);
  const sockaddr_storage own = NameOf(getsockname, connection.server);
  connection.client = FileDescriptor();
  EXPECT_TRUE(absl::IsNotFound(UserOfTcpPeer(peer, own).status()));
}

INSTANTIATE_TEST_SUITE_P(Families, PeerUserTest, ::testing::Values(AF_INET, AF_INET6));

TEST(PeerUserTest, NoSocketIsNotFound) {
  const TcpConnection connection;
  sockaddr_storage peer = NameOf(getpeername, connection.server);
  reinterpret_cast<sockaddr_in&>(peer).sin_port = htons(1);
  ExpectError(UserOfTcpPeer(peer, NameOf(getsockname, connection.server)).status(),
              absl::StatusCode::kNotFound, {"no socket"});
}

}  // namespace
}  // namespace syncgrads
