// The client side of a bidirectional stream with gRPC's callback API, with a queue of outgoing
// messages.
//
//   created ── Begin ──▶ open ── a read or write fails ──▶ ending ── no operation is left ──▶ over
//
// gRPC frees the call before OnDone, as soon as no operation is in flight and no hold is left. A
// write from a thread other than one of the call's callbacks would then access freed memory. This
// class therefore keeps a hold while the stream is open, and writes only then. Thus any thread may
// call Send at any time.

#ifndef SYNCGRADS_COMMON_RPC_CLIENT_STREAM_H_
#define SYNCGRADS_COMMON_RPC_CLIENT_STREAM_H_

#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "common/mutex.h"

namespace syncgrads {

// Moves `from` to `to` and leaves `from` empty. The overload exists because ByteBuffer has no move,
// and its copy allocates.
template <typename Message>
void MoveMessage(Message& from, Message& to) {
  to = std::move(from);
  from.Clear();
}
inline void MoveMessage(grpc::ByteBuffer& from, grpc::ByteBuffer& to) {
  to.Clear();
  to.Swap(&from);
}

// A stream of messages: receives In and sends Out.
//
// It is owned by shared pointers: the stream keeps one itself from Begin until OnOver has returned,
// and its users keep others. A GrpcReaper must make the stream: a gRPC thread may drop the last
// reference, the stream refers to a channel, and a gRPC thread must not destroy a channel.
//
// Thread-safe. gRPC's threads call the On... functions without locks, and these may call this
// object. Calls of OnMessage do not overlap, nor do those of OnSent. OnOver is the last call of
// all.
template <typename In, typename Out>
class ClientStream : protected grpc::ClientBidiReactor<Out, In>,
                     public std::enable_shared_from_this<ClientStream<In, Out>> {
 public:
  // Every message is written with `write_options`. If `max_queued` messages are already queued, the
  // next Send ends the stream with RESOURCE_EXHAUSTED.
  explicit ClientStream(grpc::WriteOptions write_options = grpc::WriteOptions(),
                        size_t max_queued = 1 << 16)
      : write_options_(write_options), max_queued_(max_queued) {}
  ~ClientStream() override = default;

  // Sends `message` after those that are queued, and leaves it empty. Before Begin, after
  // FinishSending, and when the stream is no longer open, `message` is dropped and not changed; if
  // Begin was called, OnOver is still called once.
  void Send(Out&& message) {
    {
      MutexLock lock(mutex_);
      if (!open_ || no_more_) return;
      if (!writing_) return WriteLocked(message);
      if (waiting_.size() < max_queued_) {
        MoveMessage(message, waiting_.emplace_back());
        return;
      }
      overflowed_ = true;
      no_more_ = true;
    }
    context_.TryCancel();
  }

  // Half-closes the stream: when all queued messages are written, the server is notified that no
  // more follow. The stream continues to receive.
  void FinishSending() {
    MutexLock lock(mutex_);
    if (!open_ || no_more_) return;
    no_more_ = true;
    if (!writing_) this->StartWritesDone();
  }

  // Cancels the call. OnOver is called when all operations have ended.
  void Cancel() { context_.TryCancel(); }

 protected:
  // Returns the call's context. Before Begin, the subclass must set the context up and bind the
  // call to this reactor through a stub.
  grpc::ClientContext& context() { return context_; }

  // Begins the call. The messages in `first` are sent before all others. Must be called at most
  // once.
  void Begin(std::deque<Out> first = {}) {
    self_ = this->shared_from_this();
    this->AddHold();
    {
      MutexLock lock(mutex_);
      open_ = true;
      waiting_ = std::move(first);
      WriteNextLocked();
    }
    this->StartRead(&incoming_);
    this->StartCall();
  }

  // Called when the server has accepted the call.
  virtual void OnReached() {}
  // Called for each message received. The subclass may move from `message`; the next message
  // overwrites it.
  virtual void OnMessage(In& message) = 0;
  // If true, the next message is read only when ReadNext is called. A subclass that handles
  // messages on another thread thus lets the server wait until it has handled them.
  virtual bool ReadsOnRequest() const { return false; }
  // Reads the next message. May be called on any thread; only if ReadsOnRequest returns true, and
  // then once for each message. Does nothing if the stream is no longer open.
  void ReadNext() {
    MutexLock lock(mutex_);
    if (open_) this->StartRead(&incoming_);
  }
  // Called each time that the transport has accepted a message.
  virtual void OnSent() {}
  // Called once, when the call has ended.
  virtual void OnOver(const grpc::Status& status) = 0;

 private:
  void OnReadInitialMetadataDone(bool ok) final {
    if (ok) OnReached();
  }

  void OnReadDone(bool ok) final {
    if (!ok) return Close();
    OnMessage(incoming_);
    if (!ReadsOnRequest()) this->StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) final {
    if (!ok) Close();
    {
      // The message is destroyed after the lock is released, because this may notify the owner of
      // the memory to which the message refers.
      Out written;
      MutexLock lock(mutex_);
      writing_ = false;
      MoveMessage(outgoing_, written);
      if (open_) WriteNextLocked();
    }
    if (ok) OnSent();
  }

  void OnDone(const grpc::Status& status) final {
    const std::shared_ptr<ClientStream> self = std::move(self_);
    bool overflowed = false;
    {
      MutexLock lock(mutex_);
      overflowed = overflowed_;
    }
    if (!overflowed) return OnOver(status);
    OnOver({grpc::StatusCode::RESOURCE_EXHAUSTED,
            "the server does not read: " + std::to_string(max_queued_) +
                " messages to it are queued, and the queue is full"});
  }

  // Stops writing, drops the queue, and releases the hold, so that the call can end.
  void Close() {
    std::deque<Out> dropped;
    {
      MutexLock lock(mutex_);
      if (!open_) return;
      open_ = false;
      dropped.swap(waiting_);
    }
    this->RemoveHold();
  }

  void WriteNextLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!waiting_.empty()) {
      WriteLocked(waiting_.front());
      waiting_.pop_front();
    } else if (no_more_ && !overflowed_) {
      this->StartWritesDone();
    }
  }

  // The lock must be held, as in ReadNext: without it, another thread could release the hold before
  // the write has begun. Holding it is safe, because gRPC runs no callback within StartWrite.
  void WriteLocked(Out& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    writing_ = true;
    MoveMessage(message, outgoing_);
    this->StartWrite(&outgoing_, write_options_);
  }

  const grpc::WriteOptions write_options_;
  const size_t max_queued_;
  grpc::ClientContext context_;
  In incoming_;
  std::shared_ptr<ClientStream> self_;

  Mutex mutex_;
  // True from Begin until the hold is released.
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
  // If true, Send drops its messages.
  bool no_more_ ABSL_GUARDED_BY(mutex_) = false;
  bool overflowed_ ABSL_GUARDED_BY(mutex_) = false;
  // True while `outgoing_` is being written.
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  Out outgoing_ ABSL_GUARDED_BY(mutex_);
  std::deque<Out> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_RPC_CLIENT_STREAM_H_
