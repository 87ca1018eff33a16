// The data plane: reads pushes where the transport put them, and writes results
// from where they were made.

#ifndef SYNCGRADS_SERVER_SERVICE_DATA_SERVICE_H_
#define SYNCGRADS_SERVER_SERVICE_DATA_SERVICE_H_

#include "common/clock.h"
#include "proto/data.grpc.pb.h"
#include "server/core/jobs.h"

namespace syncgrads::server {

class DataService
    : public v1::Data::WithRawCallbackMethod_Exchange<v1::Data::Service> {
 public:
  // Both must outlive this object.
  DataService(const Jobs& jobs, const Clock& clock) : jobs_(jobs), clock_(clock) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Exchange(
      grpc::CallbackServerContext* context) override;

 private:
  const Jobs& jobs_;
  const Clock& clock_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_DATA_SERVICE_H_
