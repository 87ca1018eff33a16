#include "client/grpc_control_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/grpc_channel.h"
#include "client/signals_proto.h"

namespace syncgrads::client {

GrpcControlStream::GrpcControlStream(std::unique_ptr<ConnectionUse> connection,
                                     std::shared_ptr<ControlStreamEvents> events)
    : connection_(std::move(connection)),
      stub_(v1::Control::NewStub(connection_->channel())),
      events_(std::move(events)) {}

void GrpcControlStream::Start() {
  self_ = shared_from_this();
  {
    MutexLock lock(mutex_);
    finishing_ = false;
  }
  stub_->async()->Join(&context_, this);
  // Writes come from outside of the call's own events: they need this hold.
  AddHold();
  StartRead(&incoming_);
  StartCall();
}

void GrpcControlStream::Write(const WorkerSignal& signal) {
  // As in GrpcDataStream::Write.
  MutexLock lock(mutex_);
  if (finishing_) return;
  outgoing_ = ToProto(signal);
  StartWrite(&outgoing_);
}

void GrpcControlStream::Cancel() { context_.TryCancel(); }

void GrpcControlStream::Finish() {
  {
    MutexLock lock(mutex_);
    if (finishing_) return;
    finishing_ = true;
  }
  RemoveHold();
}

void GrpcControlStream::OnWriteDone(bool ok) {
  if (ok) {
    events_->OnWritten();
  } else {
    Finish();
  }
}

void GrpcControlStream::OnReadDone(bool ok) {
  if (!ok) {
    Finish();
    return;
  }
  absl::StatusOr<std::optional<JobSignal>> signal = FromProto(incoming_);
  if (!signal.ok()) {
    {
      MutexLock lock(mutex_);
      malformed_ = absl::InvalidArgumentError(
          absl::StrCat("the coordinator sent what is no signal: ", signal.status().message()));
    }
    Cancel();
  } else if (signal->has_value()) {
    events_->OnReceived(**std::move(signal));
  }
  StartRead(&incoming_);
}

void GrpcControlStream::OnDone(const grpc::Status& status) {
  const std::shared_ptr<GrpcControlStream> self = std::move(self_);
  absl::Status closed = FromGrpc(status);
  {
    MutexLock lock(mutex_);
    if (!malformed_.ok()) closed = malformed_;
  }
  // As in GrpcDataStream.
  connection_->End();
  events_->OnClosed(std::move(closed));
}

}  // namespace syncgrads::client
