// One Join over gRPC.

#ifndef SYNCGRADS_CLIENT_GRPC_CONTROL_STREAM_H_
#define SYNCGRADS_CLIENT_GRPC_CONTROL_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "client/grpc_connections.h"
#include "client/transport.h"
#include "common/mutex.h"
#include "proto/control.grpc.pb.h"

namespace syncgrads::client {

// Always in a shared_ptr of a GrpcReaper's; keeps itself alive from Start until
// OnClosed has returned.
class GrpcControlStream : public ControlStream,
                          public grpc::ClientBidiReactor<v1::WorkerSignal, v1::JobSignal>,
                          public std::enable_shared_from_this<GrpcControlStream> {
 public:
  GrpcControlStream(std::unique_ptr<ConnectionUse> connection,
                    std::shared_ptr<ControlStreamEvents> events);

  void Start() override;
  void Write(const WorkerSignal& signal) override;
  void Cancel() override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  void Finish();

  const std::unique_ptr<ConnectionUse> connection_;
  const std::unique_ptr<v1::Control::Stub> stub_;
  grpc::ClientContext context_;
  const std::shared_ptr<ControlStreamEvents> events_;
  v1::JobSignal incoming_;
  v1::WorkerSignal outgoing_;
  std::shared_ptr<GrpcControlStream> self_;

  Mutex mutex_;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = true;  // not between Start and the end
  // What was received and is no signal.
  absl::Status malformed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_GRPC_CONTROL_STREAM_H_
