#include "client/grpc/grpc_data_stream.h"

#include <utility>
#include <vector>

#include "common/rpc/status.h"

namespace syncgrads::client {
namespace {

using MessageReference = std::shared_ptr<const OutgoingMessage>;

void DropReference(void* reference) { delete static_cast<MessageReference*>(reference); }

// Returns a slice over memory that `message` keeps alive. gRPC does not write to memory that it
// sends.
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
    // With write_through, a message counts as written when the kernel has taken it, not when it is
    // queued.
    : ClientStream(grpc::WriteOptions().set_write_through()),
      connection_(std::move(connection)),
      stub_(connection_->channel()),
      events_(std::move(events)) {}

void GrpcDataStream::Start() {
  stub_.PrepareBidiStreamingCall(&context(), "/syncgrads.v1.Data/Exchange", grpc::StubOptions(),
                                 this);
  Begin();
}

bool GrpcDataStream::Write(std::shared_ptr<const OutgoingMessage> message) {
  grpc::ByteBuffer buffer = ToByteBuffer(message);
  // From here on only the buffer's slices refer to the message. gRPC drops them when they are
  // written.
  message = nullptr;
  Send(std::move(buffer));
  return false;
}

void GrpcDataStream::Cancel() { ClientStream::Cancel(); }

void GrpcDataStream::OnSent() { events_->OnWritten(); }

void GrpcDataStream::OnMessage(grpc::ByteBuffer& message) {
  auto slices = std::make_shared<std::vector<grpc::Slice>>();
  if (!message.Dump(slices.get()).ok()) return Cancel();
  ReceivedMessage received;
  for (const grpc::Slice& slice : *slices) {
    received.bytes.push_back(
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(slice.begin()), slice.size()));
  }
  received.memory = std::move(slices);
  message.Clear();
  events_->OnReceived(std::move(received));
}

void GrpcDataStream::OnOver(const grpc::Status& status) {
  // Frees the connection first: the next stream is opened after OnClosed, and may use it.
  connection_->End();
  events_->OnClosed(connection_->refusal().ok() ? FromGrpc(status) : connection_->refusal());
}

}  // namespace syncgrads::client
