// One Exchange stream over gRPC, with raw byte buffers. Payloads are not copied: they are sent from
// the caller's memory and read from the buffers that were received.

#ifndef SYNCGRADS_CLIENT_GRPC_GRPC_DATA_STREAM_H_
#define SYNCGRADS_CLIENT_GRPC_GRPC_DATA_STREAM_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>

#include "client/grpc/grpc_connections.h"
#include "client/link/transport.h"
#include "common/rpc/client_stream.h"

namespace syncgrads::client {

// Created by GrpcReaper::Make, so that it is not destroyed on a thread of gRPC.
class GrpcDataStream : public DataStream, public ClientStream<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  GrpcDataStream(std::unique_ptr<ConnectionUse> connection,
                 std::shared_ptr<DataStreamEvents> events);

  void Start() override;
  bool Write(std::shared_ptr<const OutgoingMessage> message) override;
  void Cancel() override;

 private:
  void OnMessage(grpc::ByteBuffer& message) override;
  void OnSent() override;
  void OnOver(const grpc::Status& status) override;

  const std::unique_ptr<ConnectionUse> connection_;
  grpc::GenericStub stub_;
  const std::shared_ptr<DataStreamEvents> events_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_GRPC_GRPC_DATA_STREAM_H_
