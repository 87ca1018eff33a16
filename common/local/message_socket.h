// One end of a local stream; message_reader.h describes its messages.

#ifndef SYNCGRADS_COMMON_LOCAL_MESSAGE_SOCKET_H_
#define SYNCGRADS_COMMON_LOCAL_MESSAGE_SOCKET_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/file_descriptor.h"
#include "common/local/message_reader.h"
#include "common/mutex.h"

namespace syncgrads {

class SocketLoop;

// A SocketLoop has a reference to it until it is closed. Its events come on the loop's threads,
// without locks, and one at a time. Thread-safe.
//
// The thread that calls Write writes the message itself, as far as the socket has room. The loop
// writes the rest.
class MessageSocket : public std::enable_shared_from_this<MessageSocket> {
 public:
  enum class Side { kClient, kServer };
  class Events {
   public:
    virtual ~Events() = default;
    // A message was received. The next one is read after ReadNext was called.
    virtual void OnMessage(MessageReader::Message message) = 0;
    // The kernel has taken the message for which Write returned false.
    virtual void OnWritten() = 0;
    // The last event. `status` is the one with which the server has ended the stream, or that of
    // End or Cancel, or Unavailable if the other end has closed the socket or does not answer.
    virtual void OnClosed(const absl::Status& status) = 0;
  };

  // `socket` is connected and does not block. `most_bytes`: see MessageReader.
  MessageSocket(FileDescriptor socket, Side side, size_t most_bytes)
      : side_(side),
        descriptor_(socket.get()),
        reader_(most_bytes),
        socket_(std::move(socket)),
        may_send_(side == Side::kServer) {}

  // Passes the socket to `loop`, which must outlive all calls of this object's other functions. The
  // server's end sends that it is ready. Call it once, before all but Cancel.
  void Start(SocketLoop& loop, std::shared_ptr<Events> events);

  // Reads the next message. Call it once for each OnMessage, and once for the first message.
  void ReadNext();
  // Sends a message, of which `memory` keeps the pieces alive. Returns true if the kernel has taken
  // it. Otherwise OnWritten or OnClosed follows, and until then Write must not be called again.
  bool Write(absl::Span<const absl::Span<const std::byte>> pieces,
             std::shared_ptr<const void> memory);
  // Sends the end of the stream when the message that is being written is sent, and closes the
  // socket. To be called on the server's side.
  void End(const absl::Status& status);
  // Closes the socket at once. The server's end sends `status` before, if there is room and if no
  // message is sent in part.
  void Cancel(const absl::Status& status);

  // From now on, messages may have so many bytes. To be called by OnMessage.
  void set_most_bytes(size_t most_bytes) { reader_.set_most_bytes(most_bytes); }

 private:
  friend class SocketLoop;

  // A message that is to be sent.
  struct Outgoing {
    Outgoing(MessageKind kind, absl::Span<const absl::Span<const std::byte>> body,
             std::shared_ptr<const void> memory);

    MessageKind kind;
    MessageHeaderBytes header;
    absl::InlinedVector<absl::Span<const std::byte>, 4> body;
    std::shared_ptr<const void> memory;
    // What has been sent: bytes of the header, then pieces of the body and bytes of the next one.
    size_t sent_of_header = 0;
    size_t sent_pieces = 0;
    size_t sent_of_piece = 0;
  };
  using Sent = absl::InlinedVector<Outgoing, 1>;
  static Outgoing EndOf(const absl::Status& status);

  // Called by the loop when the socket can be read or written, or is to be closed, and by threads
  // that poll, which do not close it: OnClosed comes on a thread of the loop.
  enum class Caller { kLoop, kPoller };
  void Handle(Caller caller);
  // Called by the loop again and again. A client's end is closed if the server does not answer, and
  // a server's end if the client does not send the rest of a message. The calls are counted, not
  // the time: while a process is stopped, there are none.
  void Tick();

  // From Hold until Release, the loop does not wait for this socket: a thread that polls calls
  // Handle again and again. Hold returns false, and has no effect, before the first message was
  // handled.
  bool Hold();
  void Release();

  // Sends what is queued. Messages that have been sent are moved to `sent`, which is to be
  // destroyed without the lock. Returns whether there is a kMessage among them.
  bool FlushLocked(Sent& sent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns true if all of the message has been sent.
  bool SendLocked(Outgoing& outgoing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Queues a ping or a pong.
  void SignalLocked(MessageKind kind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reads and handles messages, at most so many.
  void Receive(int most);
  // Nothing more has arrived. If there is a part of a message, its rest is awaited.
  void AwaitRest();
  // Handles a message that is not kMessage. An error closes the socket.
  absl::Status TakeLocked(const MessageReader::Message& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // From now on, the socket is to be closed.
  void CloseLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends `status` under the conditions that Cancel names. Then the socket is to be closed.
  void CancelLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets the loop call Handle when there is something to do. If a thread is in Handle or polls,
  // does nothing: that thread does it.
  void ArmLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Close();

  const Side side_;
  // The number of `socket_`. Used without the lock by the thread that is in Handle, which is the
  // only one that closes the socket.
  const int descriptor_;
  // Used by the thread that is in Handle.
  std::shared_ptr<Events> events_;
  MessageReader reader_;

  Mutex mutex_;
  // Null before Start. Cancel may be called before.
  SocketLoop* loop_ ABSL_GUARDED_BY(mutex_) = nullptr;
  uint64_t number_ ABSL_GUARDED_BY(mutex_) = 0;
  FileDescriptor socket_ ABSL_GUARDED_BY(mutex_);
  bool is_handling_ ABSL_GUARDED_BY(mutex_) = false;
  bool has_received_ ABSL_GUARDED_BY(mutex_) = false;
  int holds_ ABSL_GUARDED_BY(mutex_) = 0;
  // The thread that is in Handle is to look again.
  bool looks_again_ ABSL_GUARDED_BY(mutex_) = false;
  bool reads_ ABSL_GUARDED_BY(mutex_) = false;
  // `reader_` may have a message that was not handled: `reads_` was false, or others had their
  // turn.
  bool has_more_ ABSL_GUARDED_BY(mutex_) = false;
  // A client's end sends nothing before the server is ready.
  bool may_send_ ABSL_GUARDED_BY(mutex_);
  // The other end has closed its socket. What it has sent before can still be read.
  bool is_broken_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Outgoing> queue_ ABSL_GUARDED_BY(mutex_);
  bool signal_is_queued_ ABSL_GUARDED_BY(mutex_) = false;
  // Set if the socket is to be closed.
  std::optional<absl::Status> closing_ ABSL_GUARDED_BY(mutex_);
  bool awaits_rest_ ABSL_GUARDED_BY(mutex_) = false;
  // Calls of Tick since a message was received; at a server's end, only those while it awaits the
  // rest of a message.
  int quiet_ticks_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_LOCAL_MESSAGE_SOCKET_H_
