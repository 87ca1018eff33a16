// How many threads poll while connections are new.

#ifndef SYNCGRADS_SERVER_NEWCOMER_POLLERS_H_
#define SYNCGRADS_SERVER_NEWCOMER_POLLERS_H_

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/net/strangers.h"
#include "third_party/grpc/pollers.h"

namespace syncgrads::server {

// All threads of gRPC poll while there are strangers, and for a moment after a connection was
// accepted: what a stranger sends may occupy the thread that has read it for 0.1 s, and the rounds
// of all jobs would wait for a single thread. Thread-safe.
class NewcomerPollers {
 public:
  // `strangers` must outlive this object.
  explicit NewcomerPollers(const Strangers& strangers) : strangers_(strangers) {}

  // All threads poll from now on, for a moment. To be called when a connection was accepted, before
  // gRPC reads from it.
  void Unpark() {
    {
      MutexLock lock(mutex_);
      newest_ = MonotonicNow();
    }
    UnparkPollersForNow();
  }
  // To be called several times a second.
  void Tick() {
    if (strangers_.size() > 0) return Unpark();
    // Held while the threads are parked, so that this does not undo a later Unpark.
    MutexLock lock(mutex_);
    if (MonotonicNow() >= newest_ + kMoment) ParkPollers();
  }

 private:
  static constexpr absl::Duration kMoment = absl::Seconds(1);

  const Strangers& strangers_;
  Mutex mutex_;
  absl::Time newest_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_NEWCOMER_POLLERS_H_
