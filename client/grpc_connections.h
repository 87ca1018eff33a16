// Connections to servers, shared by the clients of a process that are given the same
// Connections.
//
// A client's concurrent streams to one address go over connections of their own, and the
// n-th stream of each client over the n-th connection. It is made for the first of them, and
// goes with the last:
//
//              connection 0   connection 1
//   client A     stream 0       stream 1
//   client B     stream 0       stream 1
//
// What a client feels of the others, beside the bytes that go before its own:
// - A connection that breaks ends the streams of all. Whoever opens one again first makes
//   the connection of all; one that cannot connect is not waited for, since gRPC would try
//   again by a backoff of its own.
// - A stream that ends is reset, alone. Its last message is let go as it would be on a
//   connection of its own: when the kernel has taken what gRPC was writing of it.
// - No stream waits for another's reader: HTTP/2's window of a connection opens as bytes
//   arrive, and only that of a stream as they are read.

#ifndef SYNCGRADS_CLIENT_GRPC_CONNECTIONS_H_
#define SYNCGRADS_CLIENT_GRPC_CONNECTIONS_H_

#include <grpcpp/grpcpp.h>

#include <compare>
#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"

namespace syncgrads::client {

class ConnectionUse;

// Always in a shared_ptr. Thread-safe.
class Connections : public std::enable_shared_from_this<Connections> {
 public:
  struct Route {
    std::string address;
    // Signals never wait behind bulk data.
    enum class Purpose { kControl, kData } purpose = Purpose::kData;
    std::string congestion_control;  // as NewChannel takes it
    friend auto operator<=>(const Route&, const Route&) = default;
  };

  // A connection for another stream of `client`, which is any address that is the client's
  // alone.
  std::unique_ptr<ConnectionUse> Take(const void* client, const Route& route);

 private:
  friend class ConnectionUse;
  struct Connection {
    // Those before it could not connect.
    std::weak_ptr<grpc::Channel> channel;
    // Those that have a stream on it, or on one before it.
    std::set<const void*> clients;
  };

  void End(const void* client, const Route& route, size_t number);

  Mutex mutex_;
  std::map<Route, std::vector<Connection>> routes_ ABSL_GUARDED_BY(mutex_);
};

// One stream's use of a connection, which lives as long as this object: to be destroyed
// where a channel may be (grpc_reaper.h). Thread-compatible.
class ConnectionUse {
 public:
  // Ends the use, if that has not been done.
  ~ConnectionUse() { End(); }
  ConnectionUse(const ConnectionUse&) = delete;
  ConnectionUse& operator=(const ConnectionUse&) = delete;

  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  // The stream has ended: the client's next one may be on this connection.
  void End();

 private:
  friend class Connections;
  ConnectionUse(std::shared_ptr<Connections> connections, const void* client,
                Connections::Route route, size_t number, std::shared_ptr<grpc::Channel> channel);

  const std::shared_ptr<Connections> connections_;
  const void* const client_;
  const Connections::Route route_;
  const size_t number_;
  const std::shared_ptr<grpc::Channel> channel_;
  bool ended_ = false;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_GRPC_CONNECTIONS_H_
