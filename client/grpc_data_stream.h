// One Exchange over gRPC, in raw buffers: payloads are sent from where they lie
// and read where they were received.

#ifndef SYNCGRADS_CLIENT_GRPC_DATA_STREAM_H_
#define SYNCGRADS_CLIENT_GRPC_DATA_STREAM_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/base/thread_annotations.h"
#include "client/grpc_connections.h"
#include "client/transport.h"
#include "common/mutex.h"

namespace syncgrads::client {

// Always in a shared_ptr of a GrpcReaper's; keeps itself alive from Start until
// OnClosed has returned.
class GrpcDataStream : public DataStream,
                       public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                       public std::enable_shared_from_this<GrpcDataStream> {
 public:
  GrpcDataStream(std::unique_ptr<ConnectionUse> connection,
                 std::shared_ptr<DataStreamEvents> events);

  void Start() override;
  void Write(std::shared_ptr<const OutgoingMessage> message) override;
  void Cancel() override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  // No more writes: lets the call finish.
  void Finish();

  const std::unique_ptr<ConnectionUse> connection_;
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  const std::shared_ptr<DataStreamEvents> events_;
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  std::shared_ptr<GrpcDataStream> self_;

  Mutex mutex_;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = true;  // not between Start and the end
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_GRPC_DATA_STREAM_H_
