// The way that payloads take to one server, and what is to be said of it.
//
// Shared memory where there is some, with descriptors of it on streams; else the streams
// themselves. These go to the unix socket that a server on this host names in its welcome,
// else over TCP. The first goes over TCP in any case, for that is where the server can be
// asked:
//
//   TCP ── a socket is named ──▶ unix socket
//    ▲                             │
//    └─ a stream there closes: the server may be gone; or memory is not shared any more
//
// A socket at which a stream closes before the server has said anything is not tried
// again: it is in another network namespace, say. A server that starts again has another.

#ifndef SYNCGRADS_CLIENT_PAYLOAD_PATH_H_
#define SYNCGRADS_CLIENT_PAYLOAD_PATH_H_

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace syncgrads::client {

// Not thread-safe; the link that owns it holds the lock.
class PayloadPath {
 public:
  // The unix socket that streams go to from now on; empty: TCP.
  const std::string& socket() const { return socket_; }
  bool is_shared() const { return !memory_.empty(); }

  // The server takes streams at this unix socket; empty: at none.
  void OnNamed(const std::string& socket);
  // Memory is shared, by way of `socket`.
  void OnShared(const std::string& socket);
  // No memory is shared, for `reason`. If it was until now, all streams are to be replaced.
  void OnRefused(const std::string& reason);
  // The first message came on a stream to `socket`.
  void OnHeard(const std::string& socket);
  // A stream to `socket` has closed. `unheard`: why, if no message had come on it.
  void OnClosed(const std::string& socket, const std::optional<absl::Status>& unheard);

  // How payloads go, and why, if that is known and has not been said.
  std::optional<std::string> TakeLine();

 private:
  std::string Line() const;

  std::string named_;
  std::string socket_;
  std::string heard_;   // the socket that the server is known to be at
  std::string failed_;  // the one that it is not
  std::string failure_;
  // Of shared memory: by way of which socket it is shared; else why it is not. Both are
  // empty while that is not known.
  std::string memory_;
  std::string refusal_;
  std::string said_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_PAYLOAD_PATH_H_
