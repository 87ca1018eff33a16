// Destroys objects that own gRPC channels, on a thread of its own.
//
// Destroying the last channel of a process waits for the threads that run gRPC's callbacks. A
// callback that drops the last reference to a stream would therefore wait for itself.

#ifndef SYNCGRADS_COMMON_RPC_GRPC_REAPER_H_
#define SYNCGRADS_COMMON_RPC_GRPC_REAPER_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"

namespace syncgrads {

// Makes objects that it later destroys on its own thread. Owned by the object that makes the
// streams. Thread-safe.
class GrpcReaper {
 public:
  GrpcReaper();
  // Waits, without a deadline, until all objects that it made have been destroyed.
  ~GrpcReaper();

  // Makes an object. Any thread may drop the last reference to it; the object is then destroyed on
  // the reaper's thread.
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

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_RPC_GRPC_REAPER_H_
