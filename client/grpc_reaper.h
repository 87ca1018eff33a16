// Destroys what owns gRPC channels, on a thread of its own.
//
// The last channel of a process that goes waits for the threads that run gRPC's
// events. An event that drops the last reference to a stream would therefore wait
// for itself.

#ifndef SYNCGRADS_CLIENT_GRPC_REAPER_H_
#define SYNCGRADS_CLIENT_GRPC_REAPER_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"

namespace syncgrads::client {

// Thread-safe.
class GrpcReaper {
 public:
  GrpcReaper();
  // Waits until everything it made has been destroyed.
  ~GrpcReaper();

  // An object that is destroyed on the reaper's thread when the last reference,
  // wherever it is, has gone.
  template <typename T, typename... Arguments>
  std::shared_ptr<T> Make(Arguments&&... arguments) {
    auto* object = new T(std::forward<Arguments>(arguments)...);
    Count();
    return std::shared_ptr<T>(object, [this](T* gone) { Bury([gone] { delete gone; }); });
  }

 private:
  void Count();
  void Bury(std::function<void()> destroy);
  void Run();

  Mutex mutex_;
  CondVar changed_;
  size_t alive_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<std::function<void()>> graves_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_GRPC_REAPER_H_
