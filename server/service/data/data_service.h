// The service of the data plane, over gRPC and over local streams. It passes received pushes to
// jobs, and sends results to members. Payloads are not copied: a push is read from the buffers of
// the call, and a result is sent from its slot.

#ifndef SYNCGRADS_SERVER_SERVICE_DATA_DATA_SERVICE_H_
#define SYNCGRADS_SERVER_SERVICE_DATA_DATA_SERVICE_H_

#include <memory>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/file_descriptor.h"
#include "common/local/socket_loop.h"
#include "common/net/open_connections.h"
#include "common/shm/host.h"
#include "proto/data.grpc.pb.h"
#include "server/access/access.h"
#include "server/core/jobs/jobs.h"
#include "server/service/calls/stream_call.h"
#include "server/service/calls/stream_deadlines.h"
#include "server/service/data/memory_exchange.h"
#include "server/service/data/payload_bytes.h"

namespace syncgrads::server {

// Thread-safe: immutable. gRPC calls it on any of its threads.
class DataService : public v1::Data::WithRawCallbackMethod_Exchange<v1::Data::Service> {
 public:
  // `jobs`, `exchange`, `connections`, `deadlines`, `access`, `clock` and `traffic` must outlive
  // this object and its streams. Payloads are counted in `traffic`. `exchange` is null if no memory
  // is shared. `unix_socket` is the abstract unix socket for local streams; empty if there is none.
  DataService(const Jobs& jobs, const MemoryExchange* exchange, std::string unix_socket,
              OpenConnections& connections, StreamDeadlines& deadlines, Access& access,
              const Clock& clock, Traffic& traffic)
      : jobs_(jobs),
        exchange_(exchange),
        unix_socket_(std::move(unix_socket)),
        host_id_(HostId()),
        connections_(connections),
        deadlines_(deadlines),
        access_(access),
        clock_(clock),
        traffic_(traffic) {}

  // Returns how a worker on host `host_id`, whose connection comes from `peer_host`, can share
  // memory and open streams on this server's host. Empty sockets if it cannot: it is on another
  // host, or in another network namespace.
  DataWelcome WelcomeFor(const std::string& host_id, const std::string& peer_host) const;

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Exchange(
      grpc::CallbackServerContext* context) override;
  // Begins a local stream over `connection`, to a process of this server's user. `loop` must
  // outlive the stream.
  void ExchangeLocally(FileDescriptor connection, SocketLoop& loop);

 private:
  void Start(std::unique_ptr<StreamCall> call, Caller caller, std::string peer);

  const Jobs& jobs_;
  const MemoryExchange* const exchange_;
  const std::string unix_socket_;
  const std::string host_id_;
  OpenConnections& connections_;
  StreamDeadlines& deadlines_;
  Access& access_;
  const Clock& clock_;
  Traffic& traffic_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_DATA_DATA_SERVICE_H_
