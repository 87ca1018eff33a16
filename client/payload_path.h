// The way that payloads take to one server, and what is to be said of it.
//
// Shared memory where there is some; else, over streams, the unix socket that a server on
// this host names in its welcome; else TCP. The first stream goes over TCP in any case,
// for that is where the server can be asked:
//
//   TCP ── no memory is shared, a socket is named ──▶ unix socket
//    ▲                                                  │
//    └── a stream there closes: the server may be gone ─┘
//
// A socket at which a stream closes before the server has said anything is not tried
// again: it is in another network namespace, say. A server that starts again has another.

#ifndef SYNCGRADS_CLIENT_PAYLOAD_PATH_H_
#define SYNCGRADS_CLIENT_PAYLOAD_PATH_H_

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace syncgrads::client {

// Not thread-safe; the link that owns it holds the lock. Events return what there is to
// say, if it has not been said.
class PayloadPath {
 public:
  // The unix socket that streams go to from now on; empty: TCP.
  const std::string& socket() const { return socket_; }
  bool is_shared() const { return shared_; }

  // The server takes streams at this unix socket; empty: at none.
  void OnNamed(const std::string& socket) { named_ = socket; }
  // Memory is shared, by way of `socket`.
  std::optional<std::string> OnShared(const std::string& socket);
  // No memory is shared, for `reason`. Streams go to socket() now; those that do not, and
  // all if memory was shared until now, are to be replaced.
  std::optional<std::string> OnRefused(const std::string& reason);
  // The first message came on a stream to `socket`.
  std::optional<std::string> OnHeard(const std::string& socket);
  // A stream to `socket` has closed. `unheard`: why, if no message had come on it.
  std::optional<std::string> OnClosed(const std::string& socket,
                                      const std::optional<absl::Status>& unheard);

 private:
  // `line`, unless it was said last.
  std::optional<std::string> Say(std::string line);

  bool shared_ = false;
  std::string named_;
  std::string socket_;
  std::string failed_;
  std::string refusal_;  // of shared memory
  std::string said_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_PAYLOAD_PATH_H_
