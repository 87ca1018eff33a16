// Counts open streams, so that a server can wait for their ends.

#ifndef SYNCGRADS_SERVER_SERVICE_CONTROL_STREAM_COUNT_H_
#define SYNCGRADS_SERVER_SERVICE_CONTROL_STREAM_COUNT_H_

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace syncgrads::server {

// Thread-safe.
class StreamCount {
 public:
  void Opened() {
    MutexLock lock(mutex_);
    ++open_;
  }
  void Ended() {
    MutexLock lock(mutex_);
    if (--open_ == 0) changed_.NotifyAll();
  }

  // Waits until no stream is open or MonotonicNow() has reached `deadline`.
  void AwaitNone(absl::Time deadline) {
    MutexLock lock(mutex_);
    while (open_ > 0 && changed_.WaitUntil(mutex_, deadline)) {
    }
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_CONTROL_STREAM_COUNT_H_
