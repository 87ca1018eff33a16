// Cancels a call from any thread.

#ifndef SYNCGRADS_SERVER_SERVICE_CANCELLABLE_CALL_H_
#define SYNCGRADS_SERVER_SERVICE_CANCELLABLE_CALL_H_

#include <grpc/grpc.h>
#include <grpcpp/server_context.h>

#include "common/mutex.h"

namespace syncgrads::server {

// gRPC destroys a call and its context when the reactor's OnDone has returned. This object belongs
// to the reactor and may be used until the reactor is destroyed. Thread-safe.
class CancellableCall {
 public:
  explicit CancellableCall(grpc::CallbackServerContext* context) : context_(context) {}

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
    MutexLock lock(mutex_);
    context_ = nullptr;
  }

 private:
  Mutex mutex_;
  grpc::CallbackServerContext* context_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CANCELLABLE_CALL_H_
