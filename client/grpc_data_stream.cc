#include "client/grpc_data_stream.h"

#include <utility>
#include <vector>

#include "client/grpc_channel.h"

namespace syncgrads::client {
namespace {

using MessageReference = std::shared_ptr<const OutgoingMessage>;

void DropReference(void* reference) { delete static_cast<MessageReference*>(reference); }

// A slice over memory that `message` keeps. gRPC does not write to what it sends.
grpc::Slice Borrow(absl::Span<const std::byte> bytes, const MessageReference& message) {
  return grpc::Slice(const_cast<std::byte*>(bytes.data()), bytes.size(), DropReference,
                     new MessageReference(message));
}

grpc::ByteBuffer ToByteBuffer(const MessageReference& message) {
  std::vector<grpc::Slice> slices;
  slices.reserve(1 + message->payload().size());
  slices.push_back(grpc::Slice(message->header()));
  for (const absl::Span<const std::byte>& piece : message->payload()) {
    slices.push_back(Borrow(piece, message));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace

GrpcDataStream::GrpcDataStream(std::unique_ptr<ConnectionUse> connection,
                               std::shared_ptr<DataStreamEvents> events)
    : connection_(std::move(connection)),
      stub_(connection_->channel()),
      events_(std::move(events)) {}

void GrpcDataStream::Start() {
  self_ = shared_from_this();
  {
    MutexLock lock(mutex_);
    finishing_ = false;
  }
  stub_.PrepareBidiStreamingCall(&context_, "/syncgrads.v1.Data/Exchange", grpc::StubOptions(),
                                 this);
  // Writes come from outside of the call's own events: they need this hold.
  AddHold();
  StartRead(&incoming_);
  StartCall();
}

void GrpcDataStream::Write(std::shared_ptr<const OutgoingMessage> message) {
  // Dropped after the lock, if it is not sent.
  grpc::ByteBuffer buffer = ToByteBuffer(message);
  message = nullptr;
  // gRPC does not run events within StartWrite, so that the lock is safe; and
  // without it the hold could be given up before the write has begun.
  MutexLock lock(mutex_);
  if (finishing_) return;
  outgoing_.Swap(&buffer);
  // Written is what the kernel has taken, not what waits for it.
  StartWrite(&outgoing_, grpc::WriteOptions().set_write_through());
}

void GrpcDataStream::Cancel() { context_.TryCancel(); }

void GrpcDataStream::Finish() {
  {
    MutexLock lock(mutex_);
    if (finishing_) return;
    finishing_ = true;
  }
  RemoveHold();
}

void GrpcDataStream::OnWriteDone(bool ok) {
  outgoing_.Clear();
  if (ok) {
    events_->OnWritten();
  } else {
    Finish();
  }
}

void GrpcDataStream::OnReadDone(bool ok) {
  if (!ok) {
    Finish();
    return;
  }
  auto slices = std::make_shared<std::vector<grpc::Slice>>();
  if (incoming_.Dump(slices.get()).ok()) {
    ReceivedMessage message;
    for (const grpc::Slice& slice : *slices) {
      message.bytes.push_back(
          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(slice.begin()), slice.size()));
    }
    message.memory = std::move(slices);
    incoming_.Clear();
    events_->OnReceived(std::move(message));
  } else {
    Cancel();
  }
  StartRead(&incoming_);
}

void GrpcDataStream::OnDone(const grpc::Status& status) {
  const std::shared_ptr<GrpcDataStream> self = std::move(self_);
  // Before the event, after which the next stream is opened.
  connection_->End();
  events_->OnClosed(FromGrpc(status));
}

}  // namespace syncgrads::client
