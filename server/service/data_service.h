// The data plane: reads pushes where the transport put them, and writes results
// from where they were made.

#ifndef SYNCGRADS_SERVER_SERVICE_DATA_SERVICE_H_
#define SYNCGRADS_SERVER_SERVICE_DATA_SERVICE_H_

#include "common/clock.h"
#include "proto/data.grpc.pb.h"
#include "server/core/jobs.h"
#include "server/service/memory_exchange.h"

namespace syncgrads::server {

class DataService
    : public v1::Data::WithRawCallbackMethod_Exchange<v1::Data::Service> {
 public:
  // All must outlive this object. `exchange` is null if no memory is shared.
  DataService(const Jobs& jobs, const MemoryExchange* exchange, const Clock& clock)
      : jobs_(jobs), exchange_(exchange), clock_(clock) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Exchange(
      grpc::CallbackServerContext* context) override;

 private:
  const Jobs& jobs_;
  const MemoryExchange* const exchange_;
  const Clock& clock_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_DATA_SERVICE_H_
