// A call that is counted on its connection and can be cancelled from any thread.

#ifndef SYNCGRADS_SERVER_SERVICE_CALLS_CANCELLABLE_CALL_H_
#define SYNCGRADS_SERVER_SERVICE_CALLS_CANCELLABLE_CALL_H_

#include <grpc/grpc.h>
#include <grpcpp/server_context.h>

#include <optional>

#include "common/mutex.h"
#include "common/net/open_connections.h"
#include "common/rpc/peer_address.h"

namespace syncgrads::server {

// gRPC destroys a call and its context when the reactor's OnDone has returned. This object belongs
// to the reactor and may be used until the reactor is destroyed. The call is open, for its
// connection, until Done. Thread-safe.
class CancellableCall {
 public:
  // `connections` must outlive the call.
  CancellableCall(grpc::CallbackServerContext* context, OpenConnections& connections)
      : open_(std::in_place, connections, EndpointOfPeer(context->peer())), context_(context) {}

  // Cancels the call; the peer receives `status`, unless the call has ended with another one. Does
  // nothing after Done.
  void Cancel(const grpc::Status& status) ABSL_LOCKS_EXCLUDED(mutex_) {
    grpc_call* call;
    {
      MutexLock lock(mutex_);
      if (context_ == nullptr) return;
      call = context_->c_call();
      grpc_call_ref(call);
    }
    grpc_call_cancel_with_status(call, static_cast<grpc_status_code>(status.error_code()),
                                 status.error_message().c_str(), nullptr);
    grpc_call_unref(call);
  }

  // To be called in OnDone.
  void Done() ABSL_LOCKS_EXCLUDED(mutex_) {
    open_.reset();
    MutexLock lock(mutex_);
    context_ = nullptr;
  }

 private:
  std::optional<OpenConnections::Call> open_;
  Mutex mutex_;
  grpc::CallbackServerContext* context_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CALLS_CANCELLABLE_CALL_H_
