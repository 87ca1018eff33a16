// A bidirectional stream of gRPC's callback API. gRPC is given the address of this object.

#ifndef SYNCGRADS_SERVER_SERVICE_CALLS_GRPC_STREAM_CALL_H_
#define SYNCGRADS_SERVER_SERVICE_CALLS_GRPC_STREAM_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <utility>

#include "common/net/open_connections.h"
#include "server/service/calls/cancellable_call.h"
#include "server/service/calls/stream_call.h"

namespace syncgrads::server {

class GrpcStreamCall : public StreamCall,
                       public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // `context` is the context of the call. `connections` must outlive the call.
  GrpcStreamCall(grpc::CallbackServerContext* context, OpenConnections& connections)
      : call_(context, connections) {}

  void Begin(std::shared_ptr<StreamCallEvents> events) override { events_ = std::move(events); }
  void Read(grpc::ByteBuffer* message) override { StartRead(message); }
  bool Write(const grpc::ByteBuffer* message) override {
    StartWrite(message);
    return false;
  }
  void Finish(const grpc::Status& status) override { ServerBidiReactor::Finish(status); }
  void Cancel(const grpc::Status& status) override { call_.Cancel(status); }

 private:
  void OnReadDone(bool ok) override { events_->OnReadDone(ok); }
  void OnWriteDone(bool ok) override { events_->OnWriteDone(ok); }
  void OnDone() override {
    call_.Done();
    // The events own this object.
    const std::shared_ptr<StreamCallEvents> events = std::move(events_);
    events->OnDone();
  }

  CancellableCall call_;
  std::shared_ptr<StreamCallEvents> events_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CALLS_GRPC_STREAM_CALL_H_
