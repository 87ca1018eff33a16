// A local stream (common/local) in place of a call of gRPC.

#ifndef SYNCGRADS_SERVER_SERVICE_CALLS_LOCAL_STREAM_CALL_H_
#define SYNCGRADS_SERVER_SERVICE_CALLS_LOCAL_STREAM_CALL_H_

#include <cstddef>
#include <memory>

#include "common/file_descriptor.h"
#include "common/local/message_socket.h"
#include "common/local/socket_loop.h"
#include "server/service/calls/stream_call.h"

namespace syncgrads::server {

class LocalStreamCall : public StreamCall, private MessageSocket::Events {
 public:
  // `connection` is connected to a client of the same user; `loop` must outlive this object. The
  // first message has at most `most_of_first` bytes, further ones have at most `most_bytes`.
  LocalStreamCall(FileDescriptor connection, size_t most_of_first, size_t most_bytes,
                  SocketLoop& loop);

  void Begin(std::shared_ptr<StreamCallEvents> events) override;
  void Read(grpc::ByteBuffer* message) override;
  bool Write(const grpc::ByteBuffer* message) override;
  void Finish(const grpc::Status& status) override;
  void Cancel(const grpc::Status& status) override;

 private:
  void OnMessage(MessageReader::Message message) override;
  void OnWritten() override;
  void OnClosed(const absl::Status& status) override;

  const std::shared_ptr<MessageSocket> socket_;
  const size_t most_bytes_;
  SocketLoop& loop_;
  std::shared_ptr<StreamCallEvents> events_;
  grpc::ByteBuffer* incoming_ = nullptr;  // where the next message goes
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CALLS_LOCAL_STREAM_CALL_H_
