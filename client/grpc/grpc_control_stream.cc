#include "client/grpc/grpc_control_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/contract/signals.h"
#include "common/rpc/status.h"

namespace syncgrads::client {

GrpcControlStream::GrpcControlStream(std::unique_ptr<ConnectionUse> connection,
                                     std::shared_ptr<ControlStreamEvents> events)
    : connection_(std::move(connection)),
      stub_(v1::Control::NewStub(connection_->channel())),
      events_(std::move(events)) {}

void GrpcControlStream::Start() {
  stub_->async()->Join(&context(), this);
  Begin();
}

void GrpcControlStream::Write(const WorkerSignal& signal) { Send(ToProto(signal)); }

void GrpcControlStream::Cancel() { ClientStream::Cancel(); }

void GrpcControlStream::OnSent() { events_->OnWritten(); }

void GrpcControlStream::OnMessage(v1::JobSignal& message) {
  absl::StatusOr<std::optional<JobSignal>> signal = FromProto(message);
  if (!signal.ok()) {
    malformed_ = absl::InvalidArgumentError(
        absl::StrCat("the coordinator sent a malformed signal: ", signal.status().message()));
    Cancel();
  } else if (signal->has_value()) {
    events_->OnReceived(**std::move(signal));
  }
}

void GrpcControlStream::OnOver(const grpc::Status& status) {
  // Frees the connection first: the next stream is opened after OnClosed, and may use it.
  connection_->End();
  if (!connection_->refusal().ok()) return events_->OnClosed(connection_->refusal());
  events_->OnClosed(malformed_.ok() ? FromGrpc(status) : malformed_);
}

}  // namespace syncgrads::client
