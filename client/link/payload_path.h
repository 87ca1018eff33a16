// Chooses the path of payloads to one server (shared memory, unix socket, or TCP), and makes the
// report about it.
//
// If memory is shared, streams carry only descriptors of payloads; otherwise they carry the
// payloads. Streams use the unix socket whose name is in the welcome of a server on this host, or
// else TCP. The first stream always uses TCP, because the welcome is received on it:
//
//   TCP ── a socket is named ──▶ unix socket
//    ▲                             │
//    └─ a stream there closes: the server may be gone; or memory is not shared any more
//
// If a stream on a socket closes before a message has come on it, that socket is not tried again:
// it may be in another network namespace, or belong to another user. A restarted server has another
// socket.

#ifndef SYNCGRADS_CLIENT_LINK_PAYLOAD_PATH_H_
#define SYNCGRADS_CLIENT_LINK_PAYLOAD_PATH_H_

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace syncgrads::client {

// How payloads go to one server.
struct PathReport {
  // "through shared memory", "over a unix socket" or "over TCP".
  std::string path;
  // A line of text that names the path and the reason for it, or the socket.
  std::string line;
};

// Owned by a ServerLink, whose `mutex_` guards it. Not thread-safe.
class PayloadPath {
 public:
  // The unix socket that new streams use; empty: TCP.
  const std::string& socket() const { return socket_; }
  bool is_shared() const { return !memory_.empty(); }

  // The server has sent the name of its unix socket for streams; empty: it has none.
  void OnNamed(const std::string& socket);
  // Memory is shared through `socket`.
  void OnShared(const std::string& socket);
  // No memory is shared, for `reason`. If it was shared until now, the caller replaces all streams.
  void OnRefused(const std::string& reason);
  // The first message has come on a stream that uses `socket`.
  void OnReceived(const std::string& socket);
  // A stream that used `socket` has closed. `failure` is its status if no message had come on it.
  void OnClosed(const std::string& socket, const std::optional<absl::Status>& failure);

  // Returns a report about the path. nullopt if the path is not known yet or if the same report has
  // been returned before.
  std::optional<PathReport> TakeReport();

 private:
  // Returns nullopt while the path is not known.
  std::optional<PathReport> Report() const;

  std::string named_;
  std::string socket_;
  std::string working_;  // a socket on which a message has come
  std::string failed_;   // a socket that does not work
  std::string failure_;
  // Shared memory: the socket through which memory is shared, or the reason why it is not. Both are
  // empty while this is not known.
  std::string memory_;
  std::string refusal_;
  std::string reported_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_LINK_PAYLOAD_PATH_H_
