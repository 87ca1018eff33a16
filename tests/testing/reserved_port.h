// Keeps the port of a server that has died for its successor.

#ifndef SYNCGRADS_TESTS_TESTING_RESERVED_PORT_H_
#define SYNCGRADS_TESTS_TESTING_RESERVED_PORT_H_

#include <cstdint>

namespace syncgrads::testing {

// While this object exists, the kernel does not choose `port` for a socket on 127.0.0.1 that is
// bound to any free port or that connects. A server that is bound to this port, with SO_REUSEADDR,
// can listen on it as usual.
//
// Has no effect if the port is in use. Thread-safe.
class ReservedPort {
 public:
  explicit ReservedPort(uint16_t port);
  ~ReservedPort();
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;

 private:
  // Bound to the port; never listens.
  const int socket_;
};

}  // namespace syncgrads::testing

#endif  // SYNCGRADS_TESTS_TESTING_RESERVED_PORT_H_
