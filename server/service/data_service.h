// The data plane: reads pushes where the transport put them, and writes results
// from where they were made.

#ifndef SYNCGRADS_SERVER_SERVICE_DATA_SERVICE_H_
#define SYNCGRADS_SERVER_SERVICE_DATA_SERVICE_H_

#include <string>
#include <utility>

#include "common/clock.h"
#include "common/shm/host.h"
#include "proto/data.grpc.pb.h"
#include "server/core/jobs.h"
#include "server/service/memory_exchange.h"

namespace syncgrads::server {

class DataService : public v1::Data::WithRawCallbackMethod_Exchange<v1::Data::Service> {
 public:
  // All must outlive this object. `exchange` is null if no memory is shared;
  // `unix_socket` is the abstract one that this service is reached at, too, or empty.
  DataService(const Jobs& jobs, const MemoryExchange* exchange, std::string unix_socket,
              const Clock& clock)
      : jobs_(jobs),
        exchange_(exchange),
        unix_socket_(std::move(unix_socket)),
        host_id_(HostId()),
        clock_(clock) {}

  // What ways there are to this server for a worker on host `host_id`.
  DataWelcome WelcomeFor(const std::string& host_id) const;

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Exchange(
      grpc::CallbackServerContext* context) override;

 private:
  const Jobs& jobs_;
  const MemoryExchange* const exchange_;
  const std::string unix_socket_;
  const std::string host_id_;
  const Clock& clock_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_DATA_SERVICE_H_
