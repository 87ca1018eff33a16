// A TCP port that stays the test's own.

#ifndef SYNCGRADS_TESTS_TESTING_RESERVED_PORT_H_
#define SYNCGRADS_TESTS_TESTING_RESERVED_PORT_H_

#include <cstdint>
#include <string>

namespace syncgrads::testing {

// While this object exists, the kernel does not choose the port for a socket on 127.0.0.1 that is
// bound to any free port or that connects. A server that is bound to this port, with SO_REUSEADDR,
// can listen on it as usual. While none does, connections are refused. Thread-safe.
class ReservedPort {
 public:
  // Chooses a free port. If there is none, the test fails.
  ReservedPort();
  // Reserves `port`, for example that of a server that has died, for its successor. Has no effect
  // if the port is in use.
  explicit ReservedPort(uint16_t port);
  ~ReservedPort();
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;

  // "127.0.0.1:PORT".
  const std::string& address() const { return address_; }
  // The socket that is bound to the port. This class never listens on it.
  int socket() const { return socket_; }

 private:
  const int socket_;
  std::string address_;
};

}  // namespace syncgrads::testing

#endif  // SYNCGRADS_TESTS_TESTING_RESERVED_PORT_H_
