#include "server/service/calls/local_stream_call.h"

#include <grpcpp/support/slice.h>

#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "common/rpc/status.h"

namespace syncgrads::server {
namespace {

using Memory = std::shared_ptr<const std::byte[]>;

// Messages up to this size are copied: that costs less than to count references.
constexpr size_t kCopied = 1024;

grpc::Slice SliceOf(const MessageReader::Message& message) {
  if (message.size <= kCopied) return grpc::Slice(message.memory.get(), message.size);
  return grpc::Slice(
      const_cast<std::byte*>(message.memory.get()), message.size,
      [](void* held) { delete static_cast<Memory*>(held); }, new Memory(message.memory));
}

}  // namespace

LocalStreamCall::LocalStreamCall(FileDescriptor connection, size_t most_of_first, size_t most_bytes,
                                 SocketLoop& loop)
    : socket_(std::make_shared<MessageSocket>(std::move(connection), MessageSocket::Side::kServer,
                                              most_of_first)),
      most_bytes_(most_bytes),
      loop_(loop) {}

void LocalStreamCall::Begin(std::shared_ptr<StreamCallEvents> events) {
  events_ = std::move(events);
  // The events own this object.
  socket_->Start(loop_, std::shared_ptr<MessageSocket::Events>(events_, this));
}

void LocalStreamCall::Read(grpc::ByteBuffer* message) {
  incoming_ = message;
  socket_->ReadNext();
}

bool LocalStreamCall::Write(const grpc::ByteBuffer* message) {
  const auto slices = std::make_shared<std::vector<grpc::Slice>>();
  if (!message->Dump(slices.get()).ok()) return false;
  absl::InlinedVector<absl::Span<const std::byte>, 4> pieces;
  for (const grpc::Slice& slice : *slices) {
    pieces.emplace_back(reinterpret_cast<const std::byte*>(slice.begin()), slice.size());
  }
  return socket_->Write(pieces, slices);
}

void LocalStreamCall::Finish(const grpc::Status& status) { socket_->End(FromGrpc(status)); }

void LocalStreamCall::Cancel(const grpc::Status& status) { socket_->Cancel(FromGrpc(status)); }

void LocalStreamCall::OnMessage(MessageReader::Message message) {
  socket_->set_most_bytes(most_bytes_);
  const grpc::Slice slice = SliceOf(message);
  grpc::ByteBuffer buffer(&slice, 1);
  incoming_->Swap(&buffer);
  events_->OnReadDone(true);
}

void LocalStreamCall::OnWritten() { events_->OnWriteDone(true); }

void LocalStreamCall::OnClosed(const absl::Status& /*status*/) {
  const std::shared_ptr<StreamCallEvents> events = std::move(events_);
  events->OnReadDone(false);
  events->OnDone();
}

}  // namespace syncgrads::server
