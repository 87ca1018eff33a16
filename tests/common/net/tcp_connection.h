// A TCP connection within this process.

#ifndef SYNCGRADS_TESTS_COMMON_NET_TCP_CONNECTION_H_
#define SYNCGRADS_TESTS_COMMON_NET_TCP_CONNECTION_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/file_descriptor.h"
#include "gtest/gtest.h"

namespace syncgrads {

// `name` is getsockname or getpeername.
inline sockaddr_storage NameOf(int (*name)(int, sockaddr*, socklen_t*),
                               const FileDescriptor& socket) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  EXPECT_EQ(name(socket.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  return address;
}

// A TCP connection, and the socket that listened for it.
struct TcpConnection {
  explicit TcpConnection(int family = AF_INET) {
    // A client that serves both versions of IP names an IPv4 address as one of IPv6.
    server = Listen();
    const sockaddr_storage to = NameOf(getsockname, server);
    client = FileDescriptor(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const uint16_t port = reinterpret_cast<const sockaddr_in&>(to).sin_port;
    int connected = 0;
    if (family == AF_INET) {
      connected =
          connect(client.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(sockaddr_in));
    } else {
      sockaddr_in6 mapped = {};
      mapped.sin6_family = AF_INET6;
      mapped.sin6_port = port;
      inet_pton(AF_INET6, "::ffff:127.0.0.1", &mapped.sin6_addr);
      connected = connect(client.get(), reinterpret_cast<const sockaddr*>(&mapped), sizeof(mapped));
    }
    EXPECT_EQ(connected, 0);
    server = FileDescriptor(accept4(server.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }

  static FileDescriptor Listen() {
    FileDescriptor listening(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in any = {};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listening.get(), reinterpret_cast<const sockaddr*>(&any), sizeof(any)), 0);
    EXPECT_EQ(listen(listening.get(), 1), 0);
    return listening;
  }

  // Sends bytes from the client, and reads them at the server.
  void Transfer(size_t bytes) {
    const std::string some(bytes, 'x');
    ASSERT_EQ(send(client.get(), some.data(), bytes, 0), static_cast<ssize_t>(bytes));
    std::string read(bytes, '\0');
    ASSERT_EQ(recv(server.get(), read.data(), bytes, MSG_WAITALL), static_cast<ssize_t>(bytes));
  }
  // Whether the client sees that the connection has ended.
  bool HasEnded() const {
    char byte;
    return recv(client.get(), &byte, 1, MSG_DONTWAIT) < 0 && errno == ECONNRESET;
  }

  FileDescriptor server, client;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_COMMON_NET_TCP_CONNECTION_H_
