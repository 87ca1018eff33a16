#include "common/net/listening_sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads {
namespace {

FileDescriptor ConnectTo(const std::string& address, uint16_t port) {
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  inet_pton(AF_INET, address.c_str(), &to.sin_addr);
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) return socket;
  return FileDescriptor();
}

int OptionOf(const FileDescriptor& socket, int level, int option) {
  int value = -1;
  socklen_t length = sizeof(value);
  getsockopt(socket.get(), level, option, &value, &length);
  return value;
}

TEST(ListenTcpTest, PicksAPortAndListensOnTheAddressOnly) {
  const auto listening = ListenTcp({.bind = "127.0.0.1"});
  ASSERT_THAT(listening, IsOk());
  EXPECT_EQ(listening->sockets.size(), 1);
  EXPECT_NE(listening->port, 0);
  EXPECT_TRUE(ConnectTo("127.0.0.1", listening->port).valid());
  EXPECT_FALSE(ConnectTo("127.0.0.2", listening->port).valid());
}

TEST(ListenTcpTest, AllAddressesOfOneKindAreThoseOfTheOtherAsWell) {
  for (const char* bind : {"0.0.0.0", "[::]", "::"}) {
    const auto listening = ListenTcp({.bind = bind});
    ASSERT_THAT(listening, IsOk());
    EXPECT_EQ(listening->sockets.size(), 1);
    EXPECT_TRUE(ConnectTo("127.0.0.1", listening->port).valid()) << bind;
    EXPECT_TRUE(ConnectTo("127.0.0.2", listening->port).valid()) << bind;
  }
}

TEST(ListenTcpTest, TakesANameWithAllItsAddresses) {
  const auto listening = ListenTcp({.bind = "localhost"});
  ASSERT_THAT(listening, IsOk());
  EXPECT_TRUE(ConnectTo("127.0.0.1", listening->port).valid());
}

TEST(ListenTcpTest, APortIsListenedOnOnce) {
  const auto listening = ListenTcp({.bind = "127.0.0.1"});
  ASSERT_THAT(listening, IsOk());
  const std::string port = absl::StrCat(listening->port);
  for (const char* bind : {"127.0.0.1", "0.0.0.0", "localhost"}) {
    ExpectError(ListenTcp({.bind = bind, .port = listening->port}), absl::StatusCode::kUnavailable,
                {absl::StrCat("cannot listen on ", bind, ":", port), "Address already in use"});
  }
}

TEST(ListenTcpTest, APortThatConnectionsOfABeforeStillHaveIsTakenAgain) {
  auto listening = ListenTcp({.bind = "127.0.0.1"});
  ASSERT_THAT(listening, IsOk());
  const uint16_t port = listening->port;
  FileDescriptor client = ConnectTo("127.0.0.1", port);
  // The end that closes first keeps the port in TIME_WAIT for a minute.
  FileDescriptor accepted;
  while (!accepted.valid()) {
    accepted = FileDescriptor(accept(listening->sockets[0].get(), nullptr, nullptr));
  }
  accepted = FileDescriptor();
  char byte;
  EXPECT_EQ(read(client.get(), &byte, 1), 0);
  client = FileDescriptor();
  listening->sockets.clear();
  const auto again = ListenTcp({.bind = "127.0.0.1", .port = port});
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(again->port, port);
}

TEST(ListenTcpTest, AHostThatIsNoneOfThisMachineIsAnError) {
  ExpectError(ListenTcp({.bind = "192.0.2.1"}), absl::StatusCode::kUnavailable,
              {"cannot listen on 192.0.2.1:0", "Cannot assign requested address"});
  ExpectError(ListenTcp({.bind = "no.such.host.invalid"}), absl::StatusCode::kUnavailable,
              {"cannot listen on no.such.host.invalid:0"});
}

TEST(ListenTcpTest, AcceptedConnectionsHaveTheOptions) {
  const auto listening = ListenTcp(
      {.bind = "127.0.0.1", .congestion_control = "reno", .user_timeout = absl::Seconds(7)});
  ASSERT_THAT(listening, IsOk());
  const FileDescriptor client = ConnectTo("127.0.0.1", listening->port);
  FileDescriptor accepted;
  while (!accepted.valid()) {
    accepted = FileDescriptor(accept(listening->sockets[0].get(), nullptr, nullptr));
  }
  EXPECT_EQ(OptionOf(accepted, IPPROTO_TCP, TCP_NODELAY), 1);
  EXPECT_EQ(OptionOf(accepted, IPPROTO_TCP, TCP_USER_TIMEOUT), 7000);
  char name[16] = "";
  socklen_t length = sizeof(name);
  getsockopt(accepted.get(), IPPROTO_TCP, TCP_CONGESTION, name, &length);
  EXPECT_STREQ(name, "reno");
}

TEST(ListenUnixTest, ANameIsListenedOnOnce) {
  // Process ids are not unique among containers that share a network.
  std::random_device device;
  const std::string name =
      absl::StrCat("syncgrads-listening-test-", absl::Hex(uint64_t{device()} << 32 | device()));
  const auto listening = ListenUnix(name);
  ASSERT_THAT(listening, IsOk());
  ExpectError(ListenUnix(name), absl::StatusCode::kUnavailable,
              {absl::StrCat("cannot listen on @", name), "Address already in use"});
  ExpectError(ListenUnix(std::string(200, 'x')), absl::StatusCode::kUnavailable, {"too long"});
}

}  // namespace
}  // namespace syncgrads
