// A bidirectional stream on the server's side, with a queue of outgoing messages. Its call is one
// of gRPC or a local stream.
//
// Owned by shared pointers: the call has one until it is over, and the stream's senders have the
// others. Sending on a stream that has ended does nothing.
//
// The memory and time that a peer can make a stream use are bounded:
// - The first message has at most kMaxHelloBytes, and must arrive before a deadline.
// - UnreadBytes limits the bytes that wait to be sent to a peer. A stream with waiting messages is
//   not read while these bytes are at `pause_at` or more; reading resumes below half of that, or
//   when no message waits on this stream. Beyond the limit the stream is cut.
// - A stream that is finished is cut if its peer does not read the end before a deadline.

#ifndef SYNCGRADS_SERVER_SERVICE_CALLS_DUPLEX_STREAM_H_
#define SYNCGRADS_SERVER_SERVICE_CALLS_DUPLEX_STREAM_H_

#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/mutex.h"
#include "server/core/rounds/unread_bytes.h"
#include "server/service/calls/control_threads.h"
#include "server/service/calls/stream_call.h"
#include "server/service/calls/stream_deadlines.h"

namespace syncgrads::server {

inline constexpr size_t kMaxHelloBytes = 64 << 10;

// Thread-safe. OnMessage and OnOver are called one call at a time, without locks: on ControlThreads
// if there are some and a hello has come, and otherwise on the threads of the call. Lock order:
// `mutex_`, then that of StreamDeadlines or that of the call.
class DuplexStream : public StreamCallEvents,
                     public TimedStream,
                     public std::enable_shared_from_this<DuplexStream> {
 public:
  // `deadlines` must outlive this object. `unread` counts the bytes that wait to be sent. `threads`
  // must outlive this object; null: the threads of the call handle the messages.
  DuplexStream(std::unique_ptr<StreamCall> call, StreamDeadlines& deadlines,
               std::shared_ptr<UnreadBytes> unread, ControlThreads* threads = nullptr);
  ~DuplexStream() override;

  // Starts reading. To be called once.
  void Start();

  // Queues `message` to be sent. Messages are sent in ascending order of `place`, and in the order
  // of the calls if their places are equal. Cuts the stream with RESOURCE_EXHAUSTED if the waiting
  // bytes exceed the limit.
  void Enqueue(const grpc::ByteBuffer& message, uint32_t place = 0);

  // Ends the stream with `status` when the queued messages have been sent. Later messages are
  // dropped.
  void FinishAfterSending(grpc::Status status);

  // Ends the stream with `status` at once. Queued messages are dropped.
  void CutWith(const grpc::Status& status);

 protected:
  // Handles a received message. The first message must be a hello: if it is not, or is rejected,
  // the subclass finishes the stream.
  virtual void OnMessage(grpc::ByteBuffer& message) = 0;
  // Which of the ControlThreads handles a message. Called before each OnMessage if there are some.
  virtual MessageWeight WeightOf(grpc::ByteBuffer& message) {
    return message.Length() < kLargeMessageBytes ? MessageWeight::kLight : MessageWeight::kLarge;
  }
  // With which streams this one shares the turns on the ControlThreads. Called before OnMessage and
  // OnOver.
  virtual std::string TurnsOf() const { return ""; }
  // Called once, as the last call, when the stream has ended for any reason.
  virtual void OnOver() = 0;

  // From now on, counts the waiting bytes in `unread`, those that wait already included.
  void CountIn(std::shared_ptr<UnreadBytes> unread);
  // Whether a message waits to be sent or is being written.
  bool HasUnread() const;

 private:
  struct Waiting {
    grpc::ByteBuffer message;
    size_t bytes = 0;
    // When the call has begun to write it; set only if events are recorded.
    absl::Time written_since = absl::InfinitePast();
  };
  // Messages by place; messages of equal places are in the order in which they were queued.
  using Queue = std::multimap<uint32_t, Waiting>;

  // Checks the first message. If it is too large, finishes the stream and returns false.
  bool TakeFirst();

  // Calls OnMessage on another thread. Until it has returned, no message is read and OnOver is not
  // called. If the stream ends before the thread is free, the message is dropped.
  void HandleOnThreads();
  // Whether the stream was finished or cut on this side.
  bool HasEnded();
  void OnReadDone(bool ok) final;
  void OnWriteDone(bool ok) final;
  void OnDone() final;
  void OnTimeout(absl::Duration time) final;

  // Ends the stream with `status` when the queued messages have been sent. Does nothing if it has
  // been ended before.
  void EndLocked(grpc::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Calls Finish, once, if no message is being written or handled.
  void FinishLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Begins to write a message. Returns true if it is written.
  bool WriteLocked(Waiting message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `writing_` is written. Returns it; the caller destroys it without the lock.
  Waiting WrittenLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reads the next message, or pauses if too many bytes wait.
  void ReadNextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Resumes reading if it is paused and the waiting bytes permit it.
  void ReadOnLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes all waiting messages from the queue. The caller destroys them without the lock, since
  // they may have the last references to results.
  Queue TakeWaitingLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The bytes that wait for this peer on all its streams, without the message that is being
  // written on this one.
  size_t UnreadLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::unique_ptr<StreamCall> call_;
  StreamDeadlines& deadlines_;
  ControlThreads* const threads_;
  // Whether a message has been received.
  std::atomic<bool> has_hello_{false};
  grpc::ByteBuffer incoming_;

  mutable Mutex mutex_;
  std::shared_ptr<UnreadBytes> unread_ ABSL_GUARDED_BY(mutex_);
  // The part of `unread_` that belongs to this stream.
  size_t own_unread_ ABSL_GUARDED_BY(mutex_) = 0;
  // The deadline that was registered last with `deadlines_`.
  absl::Time deadline_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  // The message that the call is writing.
  std::optional<Waiting> writing_ ABSL_GUARDED_BY(mutex_);
  Queue waiting_ ABSL_GUARDED_BY(mutex_);
  bool reading_paused_ ABSL_GUARDED_BY(mutex_) = false;
  // A message waits for a thread or is being handled there.
  bool handling_ ABSL_GUARDED_BY(mutex_) = false;
  // CutWith was called.
  bool cut_ ABSL_GUARDED_BY(mutex_) = false;
  // The status that the stream ends with. Once it is set, no message is queued.
  std::optional<grpc::Status> finish_with_ ABSL_GUARDED_BY(mutex_);
  // Finish was called.
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CALLS_DUPLEX_STREAM_H_
