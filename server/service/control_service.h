// The control and follow planes, as the coordinator serves them.

#ifndef SYNCGRADS_SERVER_SERVICE_CONTROL_SERVICE_H_
#define SYNCGRADS_SERVER_SERVICE_CONTROL_SERVICE_H_

#include <string>

#include "proto/control.grpc.pb.h"
#include "server/core/coordinator.h"

namespace syncgrads::server {

class ControlService : public v1::Control::CallbackService {
 public:
  // On a server that follows another, `coordinator` is null and
  // `coordinator_address` is where callers should have gone. `server_token` is
  // what followers must say.
  ControlService(Coordinator* coordinator, std::string coordinator_address,
                 std::string server_token);

  grpc::ServerBidiReactor<v1::WorkerSignal, v1::JobSignal>* Join(
      grpc::CallbackServerContext* context) override;
  grpc::ServerBidiReactor<v1::ServerSignal, v1::PlanSignal>* Follow(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Probe(grpc::CallbackServerContext* context,
                                  const v1::ProbeRequest* request, v1::ProbeReply* reply) override;

 private:
  Coordinator* const coordinator_;
  const std::string coordinator_address_;
  const std::string server_token_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CONTROL_SERVICE_H_
