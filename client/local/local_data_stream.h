// A local stream (common/local) in place of an Exchange stream. Payloads are sent from the caller's
// memory.

#ifndef SYNCGRADS_CLIENT_LOCAL_LOCAL_DATA_STREAM_H_
#define SYNCGRADS_CLIENT_LOCAL_LOCAL_DATA_STREAM_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "client/link/transport.h"
#include "common/local/message_socket.h"
#include "common/local/socket_loop.h"
#include "common/mutex.h"

namespace syncgrads::client {

// Always owned by a shared_ptr.
class LocalDataStream : public DataStream,
                        private MessageSocket::Events,
                        public std::enable_shared_from_this<LocalDataStream> {
 public:
  // `name` is that of an abstract unix socket. `loop` must outlive this object.
  LocalDataStream(std::string name, SocketLoop& loop, std::shared_ptr<DataStreamEvents> events);

  void Start() override;
  bool Write(std::shared_ptr<const OutgoingMessage> message) override;
  void Cancel() override;

 private:
  void OnMessage(MessageReader::Message message) override;
  void OnWritten() override;
  void OnClosed(const absl::Status& status) override;
  // Connects, and sets `socket_`.
  absl::Status Connect();
  // Null before Start, and if the server could not be reached.
  std::shared_ptr<MessageSocket> Socket();

  const std::string name_;
  SocketLoop& loop_;
  const std::shared_ptr<DataStreamEvents> events_;
  Mutex mutex_;
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<MessageSocket> socket_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_LOCAL_LOCAL_DATA_STREAM_H_
