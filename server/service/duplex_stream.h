// A bidirectional stream of gRPC's callback API with a queue of outgoing messages.
//
// Owned by shared pointers: one the stream's own until gRPC is done with it, and
// those of whoever sends to it. Sending to a stream that is over does nothing.

#ifndef SYNCGRADS_SERVER_SERVICE_DUPLEX_STREAM_H_
#define SYNCGRADS_SERVER_SERVICE_DUPLEX_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "common/mutex.h"

namespace syncgrads::server {

// Thread-safe. OnMessage and OnOver are called by one thread at a time.
template <typename In, typename Out>
class DuplexStream : public grpc::ServerBidiReactor<In, Out>,
                     public std::enable_shared_from_this<DuplexStream<In, Out>> {
 public:
  // Begins to read. To be called once, before the reactor is returned to gRPC.
  void Start() {
    self_ = this->shared_from_this();
    this->StartRead(&incoming_);
  }

  // Sends `message` before those of higher places that are waiting, and after the others.
  void Enqueue(Out message, uint32_t place = 0) {
    MutexLock lock(mutex_);
    if (finish_with_.has_value()) return;
    if (writing_.has_value()) {
      waiting_.emplace(place, std::move(message));
    } else {
      WriteLocked(std::move(message));
    }
  }

  // Ends the stream when what was enqueued has been sent; nothing follows.
  void FinishAfterSending(grpc::Status status) {
    MutexLock lock(mutex_);
    if (finish_with_.has_value()) return;
    finish_with_ = std::move(status);
    if (!writing_.has_value()) this->Finish(*finish_with_);
  }

 protected:
  virtual void OnMessage(In& message) = 0;
  // The peer has closed the stream or is out of reach. Called once, last.
  virtual void OnOver() = 0;

 private:
  // A peer that sends without reading the answers is not read from any further. A
  // well-behaved one has an answer to come for each chunk of its open rounds.
  static constexpr size_t kMaxQueued = 1 << 16;

  void OnReadDone(bool ok) final {
    if (!ok) {
      // What was to be sent to a peer that is gone, is not.
      MutexLock lock(mutex_);
      waiting_.clear();
      if (finish_with_.has_value()) return;
      finish_with_ = grpc::Status::OK;
      if (!writing_.has_value()) this->Finish(*finish_with_);
      return;
    }
    OnMessage(incoming_);
    MutexLock lock(mutex_);
    if (finish_with_.has_value()) return;
    if (waiting_.size() >= kMaxQueued) {
      reading_paused_ = true;
    } else {
      this->StartRead(&incoming_);
    }
  }

  void OnWriteDone(bool ok) final {
    MutexLock lock(mutex_);
    writing_.reset();
    if (!ok) waiting_.clear();
    if (reading_paused_ && !finish_with_.has_value() && waiting_.size() < kMaxQueued / 2) {
      reading_paused_ = false;
      this->StartRead(&incoming_);
    }
    if (!waiting_.empty()) {
      WriteLocked(std::move(waiting_.extract(waiting_.begin()).mapped()));
    } else if (finish_with_.has_value()) {
      this->Finish(*finish_with_);
    }
  }

  void OnDone() final {
    OnOver();
    self_.reset();
  }

  void WriteLocked(Out message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    writing_ = std::move(message);
    this->StartWrite(&*writing_);
  }

  std::shared_ptr<DuplexStream> self_;
  In incoming_;
  Mutex mutex_;
  // What is being written.
  std::optional<Out> writing_ ABSL_GUARDED_BY(mutex_);
  // By their places; those of one place in the order in which they came.
  std::multimap<uint32_t, Out> waiting_ ABSL_GUARDED_BY(mutex_);
  bool reading_paused_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> finish_with_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_DUPLEX_STREAM_H_
