#include "tests/testing/reserved_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace syncgrads::testing {

ReservedPort::ReservedPort() : ReservedPort(0) { EXPECT_NE(address_, "127.0.0.1:0"); }

ReservedPort::ReservedPort(uint16_t port)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const int on = 1;
  setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address = {};
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  // If this fails, another socket has the port, and the server that needs it reports the error.
  if (bind(socket_, generic, length) == 0) getsockname(socket_, generic, &length);
  address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
}

ReservedPort::~ReservedPort() { close(socket_); }

}  // namespace syncgrads::testing
