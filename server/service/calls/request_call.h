// A call with one request, which has one answer or a stream of answers.
//
// gRPC begins such a call when its request has arrived: no code of ours learns of calls whose
// request never comes, of which a peer may open any number. So all of them are bidirectional
// streams here, which are the same for the peer. A request has a deadline, and the number of calls
// that wait for theirs is limited, as for the hellos of streams (StreamDeadlines).

#ifndef SYNCGRADS_SERVER_SERVICE_CALLS_REQUEST_CALL_H_
#define SYNCGRADS_SERVER_SERVICE_CALLS_REQUEST_CALL_H_

#include <google/protobuf/message_lite.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "common/net/open_connections.h"
#include "server/service/calls/cancellable_call.h"
#include "server/service/calls/stream_deadlines.h"

namespace syncgrads::server {

// It owns itself until gRPC has called OnDone. Thread-safe, except that the calls of Write and End
// follow each other: a message is written after OnWriteDone of the one before.
class RequestCall : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                    public TimedStream,
                    public std::enable_shared_from_this<RequestCall> {
 public:
  // Who writes a stream of answers. Called on any of gRPC's threads, without locks.
  class Events {
   public:
    virtual ~Events() = default;
    // gRPC has taken the message. If `ok` is false, the caller has disconnected.
    virtual void OnWriteDone(bool ok) = 0;
    // The call was cancelled, or its connection has broken. End must still be called.
    virtual void OnCancel() {}
    // The last event.
    virtual void OnDone() {}
  };
  using Answer = std::function<void(RequestCall& call, grpc::ByteBuffer& request)>;

  // Begins a call. `answer` is called when the request has arrived, and must lead to a call of End.
  // `deadlines` has the time in which the request must arrive. All three must outlive the call.
  static RequestCall* Begin(grpc::CallbackServerContext* context, OpenConnections& connections,
                            StreamDeadlines& deadlines, const Answer& answer);

  // The context; valid while the request is being answered.
  const grpc::CallbackServerContext& context() const { return context_; }

  // To be called while the request is being answered: `events` receives what happens from then on,
  // and is kept until the call is over.
  void SetEvents(std::shared_ptr<Events> events) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same for anything that is to be destroyed when the call is over.
  void KeepUntilOver(std::shared_ptr<const void> kept) { kept_ = std::move(kept); }

  void Write(const google::protobuf::MessageLite& answer);
  void End(const absl::Status& status);
  // Sends the only answer, and ends the call with OK. The caller has the same time to read it.
  void EndWith(const google::protobuf::MessageLite& answer);
  // Cancels the call from any thread; the peer receives `status`, unless the call has ended with
  // another one.
  void Cancel(const grpc::Status& status) { call_.Cancel(status); }

 private:
  enum class State { kAwaitsRequest, kAnswers, kAnswered };

  RequestCall(grpc::CallbackServerContext* context, OpenConnections& connections,
              StreamDeadlines& deadlines, const Answer& answer);

  // Serializes a message to outgoing_. A message that is too large for that cancels the call.
  void Serialize(const google::protobuf::MessageLite& answer);
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void OnTimeout(absl::Duration time) override;
  std::shared_ptr<Events> TheEvents() ABSL_LOCKS_EXCLUDED(mutex_);

  const grpc::CallbackServerContext& context_;
  CancellableCall call_;
  StreamDeadlines& deadlines_;
  const Answer& answer_;
  std::atomic<State> state_{State::kAwaitsRequest};
  // The deadline that was registered last.
  absl::Time deadline_ = absl::InfiniteFuture();
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  std::shared_ptr<const void> kept_;
  std::shared_ptr<RequestCall> self_;

  Mutex mutex_;
  std::shared_ptr<Events> events_ ABSL_GUARDED_BY(mutex_);
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CALLS_REQUEST_CALL_H_
