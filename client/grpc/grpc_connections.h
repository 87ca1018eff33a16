// Connections to servers. The clients of a process that are given the same Connections share them.
//
// Concurrent streams of one client to one address use different connections: the n-th stream of
// each client uses the n-th connection. A connection is made for its first stream and closed with
// its last one:
//
//              connection 0   connection 1
//   client A     stream 0       stream 1
//   client B     stream 0       stream 1
//
// Effects of one client on another, apart from bytes that are sent first:
// - If a connection breaks, the streams of all clients on it end. The client that opens a stream
//   first makes the new connection for all. A connection that cannot connect is replaced, because
//   gRPC would retry with a backoff of its own.
// - A stream that ends is reset alone. Its last message is released as on a connection of its own:
//   when the kernel has taken what gRPC was writing of it.
// - A connection to an abstract unix socket is made with a descriptor, after the user of the
//   listening process has been checked: the first message has secrets, and any user may listen at a
//   name that is free. gRPC cannot make such a connection again, so when a stream on it has ended,
//   the next stream makes a new one.
// - No stream waits for the reader of another one. HTTP/2's flow-control window of a connection
//   opens when bytes arrive; only the window of a stream waits until they are read.

#ifndef SYNCGRADS_CLIENT_GRPC_GRPC_CONNECTIONS_H_
#define SYNCGRADS_CLIENT_GRPC_GRPC_CONNECTIONS_H_

#include <grpcpp/grpcpp.h>

#include <compare>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/mutex.h"
#include "common/rpc/credentials.h"

namespace syncgrads::client {

class ConnectionUse;

// Always owned by a shared_ptr: of the transports, and of the ConnectionUses. Thread-safe.
class Connections : public std::enable_shared_from_this<Connections> {
 public:
  // `security` is that of all connections.
  explicit Connections(ChannelSecurity security = ChannelSecurity())
      : security_(std::move(security)) {}

  const ChannelSecurity& security() const { return security_; }

  struct Route {
    std::string address;
    // Control and data have different connections, so that signals never wait behind bulk data.
    enum class Purpose { kControl, kData } purpose = Purpose::kData;
    std::string congestion_control;  // empty: the kernel's default
    friend auto operator<=>(const Route&, const Route&) = default;
  };

  // Returns a connection for a further stream of `client`. `client` is an address that identifies
  // the client; it is not dereferenced.
  std::unique_ptr<ConnectionUse> Take(const void* client, const Route& route);

 private:
  friend class ConnectionUse;
  struct Connection {
    // Replaced when it could not connect. Null if the newest attempt with a descriptor failed.
    std::weak_ptr<grpc::Channel> channel;
    // The clients that have a stream on this connection or on one that it replaced.
    std::set<const void*> clients;
  };

  void End(const void* client, const Route& route, size_t number);

  const ChannelSecurity security_;
  Mutex mutex_;
  std::map<Route, std::vector<Connection>> routes_ ABSL_GUARDED_BY(mutex_);
};

// One stream's use of a connection, which lives at least as long as this object. Must be destroyed
// on a thread on which a channel may be destroyed (common/rpc/grpc_reaper.h). Thread-compatible.
class ConnectionUse {
 public:
  // Calls End. Waits up to a quarter of a second for an attempt to connect.
  ~ConnectionUse();
  ConnectionUse(const ConnectionUse&) = delete;
  ConnectionUse& operator=(const ConnectionUse&) = delete;

  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  // Why there is no connection, with the errors of ConnectToOwnStream; all calls on the channel
  // then fail. OK if there is one, or if gRPC makes it.
  const absl::Status& refusal() const { return refusal_; }

  // The stream has ended, so the client's next stream may use this connection. Idempotent.
  void End();

 private:
  friend class Connections;
  ConnectionUse(std::shared_ptr<Connections> connections, const void* client,
                Connections::Route route, size_t number, std::shared_ptr<grpc::Channel> channel,
                absl::Status refusal);

  const std::shared_ptr<Connections> connections_;
  const void* const client_;
  const Connections::Route route_;
  const size_t number_;
  const std::shared_ptr<grpc::Channel> channel_;
  const absl::Status refusal_;
  bool ended_ = false;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_GRPC_GRPC_CONNECTIONS_H_
