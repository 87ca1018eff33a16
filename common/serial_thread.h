// A thread that runs closures one after the other, in order. Each server applies the plan on one.

#ifndef SYNCGRADS_COMMON_SERIAL_THREAD_H_
#define SYNCGRADS_COMMON_SERIAL_THREAD_H_

#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"

namespace syncgrads {

// Thread-safe.
class SerialThread {
 public:
  SerialThread();
  // Calls Finish.
  ~SerialThread();

  // Queues `closure` to run after all earlier ones. Never blocks. After Finish, the closure is
  // not run.
  void Run(std::function<void()> closure);

  // Waits until all closures have run, also those that they queue meanwhile, and ends the
  // thread. Call it before anything that a closure uses is destroyed, from one thread at a
  // time, and not from a closure. Idempotent.
  void Finish();

 private:
  void Work();

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_SERIAL_THREAD_H_
