// Where what a server has to tell its coordinator goes, once there is a way.

#ifndef SYNCGRADS_SERVER_CORE_RELAY_H_
#define SYNCGRADS_SERVER_CORE_RELAY_H_

#include <functional>
#include <utility>

#include "common/mutex.h"

namespace syncgrads::server {

// Thread-safe.
template <typename Told>
class Relay {
 public:
  using Sink = std::function<void(const Told&)>;

  // `sink` is called on any thread; null: what is told goes nowhere.
  void SetSink(Sink sink) {
    MutexLock lock(mutex_);
    sink_ = std::move(sink);
  }
  void Tell(const Told& told) const {
    Sink sink;
    {
      MutexLock lock(mutex_);
      sink = sink_;
    }
    if (sink) sink(told);
  }

 private:
  mutable Mutex mutex_;
  Sink sink_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_RELAY_H_
