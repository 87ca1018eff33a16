// What the thread that computes a chunk's result does with the chunk's lock: it releases the lock
// meanwhile, so that nobody waits for the arithmetic.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_COMPUTING_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_COMPUTING_H_

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"

namespace syncgrads::server {

// While it exists, `computing` is true, and `mutex` is released. The caller holds `mutex` when it
// constructs a Computing, and holds it again once the Computing is destroyed. Between the two it
// uses only what other threads leave alone while `computing` is true. `computing` is protected by
// `mutex`.
//
// For the analysis of locks, the caller holds `mutex` throughout: what `computing` protects is
// declared as protected by `mutex`.
class Computing {
 public:
  Computing(Mutex& mutex, bool& computing) ABSL_NO_THREAD_SAFETY_ANALYSIS : mutex_(mutex),
                                                                            computing_(computing) {
    computing_ = true;
    mutex_.Unlock();
  }
  ~Computing() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    mutex_.Lock();
    computing_ = false;
  }
  Computing(const Computing&) = delete;
  Computing& operator=(const Computing&) = delete;

 private:
  Mutex& mutex_;
  bool& computing_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_COMPUTING_H_
