#include "tests/testing/reserved_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace syncgrads::testing {

ReservedPort::ReservedPort(uint16_t port)
    : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const int on = 1;
  setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  // If this fails, another socket has the port, and the server that needs it reports the error.
  bind(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

ReservedPort::~ReservedPort() { close(socket_); }

}  // namespace syncgrads::testing
