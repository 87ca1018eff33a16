#include "client/local/local_data_stream.h"

#include <utility>

#include "common/file_descriptor.h"
#include "common/group/layout.h"
#include "common/shm/fd_socket.h"
#include "common/status_macros.h"

namespace syncgrads::client {

LocalDataStream::LocalDataStream(std::string name, SocketLoop& loop,
                                 std::shared_ptr<DataStreamEvents> events)
    : name_(std::move(name)), loop_(loop), events_(std::move(events)) {}

void LocalDataStream::Start() {
  const absl::Status connected = Connect();
  if (!connected.ok()) {
    return loop_.Run(
        [self = shared_from_this(), connected] { self->events_->OnClosed(connected); });
  }
  const std::shared_ptr<MessageSocket> socket = Socket();
  socket->Start(loop_, std::shared_ptr<MessageSocket::Events>(shared_from_this(), this));
  socket->ReadNext();
}

absl::Status LocalDataStream::Connect() {
  SYNCGRADS_ASSIGN_OR_RETURN(FileDescriptor connected, ConnectToOwnStream(name_));
  MutexLock lock(mutex_);
  if (is_cancelled_) return absl::CancelledError("the stream was cancelled");
  socket_ = std::make_shared<MessageSocket>(std::move(connected), MessageSocket::Side::kClient,
                                            kMaxMessageBytes);
  return absl::OkStatus();
}

std::shared_ptr<MessageSocket> LocalDataStream::Socket() {
  MutexLock lock(mutex_);
  return socket_;
}

bool LocalDataStream::Write(std::shared_ptr<const OutgoingMessage> message) {
  const std::shared_ptr<MessageSocket> socket = Socket();
  if (socket == nullptr) return false;
  const std::string& header = message->header();
  Pieces pieces = {
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(header.data()), header.size())};
  for (const absl::Span<const std::byte>& piece : message->payload()) pieces.push_back(piece);
  return socket->Write(pieces, std::move(message));
}

void LocalDataStream::Cancel() {
  std::shared_ptr<MessageSocket> socket;
  {
    MutexLock lock(mutex_);
    is_cancelled_ = true;
    socket = socket_;
  }
  if (socket != nullptr) socket->Cancel(absl::CancelledError("the stream was cancelled"));
}

void LocalDataStream::OnMessage(MessageReader::Message message) {
  events_->OnReceived({{message.body()}, message.memory});
  if (const std::shared_ptr<MessageSocket> socket = Socket()) socket->ReadNext();
}

void LocalDataStream::OnWritten() { events_->OnWritten(); }

void LocalDataStream::OnClosed(const absl::Status& status) { events_->OnClosed(status); }

}  // namespace syncgrads::client
