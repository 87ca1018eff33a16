// The open connections of a server, and the limits of their number and of the calls on each.
//
// gRPC 1.51 does not limit the number of connections. It limits the streams on each, but a stream
// that its peer resets does not count any more, while the call takes memory until all has ended
// that was begun for it (CVE-2023-44487). So the calls are counted here, and a connection with too
// many is reset.

#ifndef SYNCGRADS_COMMON_NET_OPEN_CONNECTIONS_H_
#define SYNCGRADS_COMMON_NET_OPEN_CONNECTIONS_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>

#include "absl/time/time.h"
#include "common/file_descriptor.h"
#include "common/line_throttle.h"
#include "common/mutex.h"

namespace syncgrads {

struct ConnectionLimits {
  // The maximum number of open connections. Three quarters of the process's descriptor limit is
  // a limit too; the rest is left for files.
  uint32_t connections = 10000;
  // The maximum number of open connections from one IPv4 address, or from one IPv6 /64 network.
  // Connections to a unix socket count only towards `connections`.
  uint32_t connections_per_peer = 2000;
  // The flags that set the limits, for the log. Empty: there is none.
  std::string connections_flag = {};
  std::string connections_per_peer_flag = {};
  // The maximum number of calls on one connection that have begun and not ended. It must be more
  // than the streams that HTTP/2 permits on it: those that a client has cancelled may still be
  // ending when it begins others.
  uint32_t calls_per_connection = 400;
};

// Thread-safe. An endpoint is the peer's address and port: "10.0.0.1:5000" or "[::1]:5000".
class OpenConnections {
 public:
  using Warn = std::function<void(const std::string& line)>;

  // `warn` logs a line about a connection that was reset, on any thread, at most once every 10 s.
  OpenConnections(ConnectionLimits limits, Warn warn);

  // Returns which limit a further connection of this peer would exceed; empty if none. `peer` is
  // the text by which the connections of one peer are counted; empty: they are not.
  std::string PastLimit(const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Adds a connection. Whoever owns it closes the descriptor without notice.
  void Add(const FileDescriptor& connection, const std::string& endpoint, const std::string& peer)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // The number of open connections. Makes a system call for each of them.
  uint32_t size() const ABSL_LOCKS_EXCLUDED(mutex_);
  // The number of open calls of all connections.
  int64_t open_calls() const { return open_calls_; }
  // Resets a connection. Returns false if there is none to reset.
  bool Reset(const std::string& endpoint) ABSL_LOCKS_EXCLUDED(mutex_);
  // The maximum number of open connections: ConnectionLimits::connections, or less if the process
  // may have too few descriptors.
  uint32_t most() const;

  // A call on a connection, which is open until this object is destroyed. If there are too many,
  // the connection is reset. Those of an earlier connection of the same endpoint count too.
  class Call {
   public:
    // `connections` must outlive this object.
    Call(OpenConnections& connections, std::string endpoint);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    OpenConnections& connections_;
    const std::string endpoint_;
  };

 private:
  // Device and inode show whether the descriptor number still belongs to this connection.
  struct Connection {
    dev_t device = 0;
    ino_t inode = 0;
    std::string endpoint;
    std::string peer;
    bool is_reset = false;
  };
  using ByDescriptor = std::unordered_map<int, Connection>;

  std::string PastLimitLocked(const std::string& peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool IsOf(int descriptor, const Connection& connection);
  // Removes connections that have been closed from the counts.
  void ForgetClosedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetLocked(ByDescriptor::iterator connection) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ConnectionLimits limits_;
  const Warn warn_;
  LineThrottle resets_;

  mutable Mutex mutex_;
  // Open connections, by descriptor number, and their number by peer. Connections that have been
  // closed are included until ForgetClosedLocked.
  mutable ByDescriptor connections_ ABSL_GUARDED_BY(mutex_);
  mutable std::map<std::string, uint32_t> by_peer_ ABSL_GUARDED_BY(mutex_);
  // The descriptor numbers by endpoint.
  mutable std::unordered_map<std::string, int> by_endpoint_ ABSL_GUARDED_BY(mutex_);
  absl::Time looked_for_closed_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();

  // A lock of its own, because a search for closed connections holds the other for many system
  // calls, and calls begin and end on gRPC's threads.
  Mutex calls_mutex_;
  // The number of open calls by endpoint, also of those whose connection has ended.
  std::unordered_map<std::string, uint32_t> calls_ ABSL_GUARDED_BY(calls_mutex_);
  std::atomic<int64_t> open_calls_{0};
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_NET_OPEN_CONNECTIONS_H_
