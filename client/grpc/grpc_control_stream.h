// One Join stream over gRPC.

#ifndef SYNCGRADS_CLIENT_GRPC_GRPC_CONTROL_STREAM_H_
#define SYNCGRADS_CLIENT_GRPC_GRPC_CONTROL_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/status/status.h"
#include "client/grpc/grpc_connections.h"
#include "client/link/transport.h"
#include "common/rpc/client_stream.h"
#include "proto/control.grpc.pb.h"

namespace syncgrads::client {

// Created by GrpcReaper::Make, so that it is not destroyed on a thread of gRPC.
class GrpcControlStream : public ControlStream,
                          public ClientStream<v1::JobSignal, v1::WorkerSignal> {
 public:
  GrpcControlStream(std::unique_ptr<ConnectionUse> connection,
                    std::shared_ptr<ControlStreamEvents> events);

  void Start() override;
  void Write(const WorkerSignal& signal) override;
  void Cancel() override;

 private:
  void OnMessage(v1::JobSignal& message) override;
  void OnSent() override;
  void OnOver(const grpc::Status& status) override;

  const std::unique_ptr<ConnectionUse> connection_;
  const std::unique_ptr<v1::Control::Stub> stub_;
  const std::shared_ptr<ControlStreamEvents> events_;
  // Why a received message is malformed. Not guarded: only gRPC's events use it, and OnOver comes
  // after all others.
  absl::Status malformed_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_GRPC_GRPC_CONTROL_STREAM_H_
