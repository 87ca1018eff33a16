// SIGTERM and SIGINT as a question that a program asks when it suits it.

#ifndef SYNCGRADS_WORKER_RUN_STOP_SIGNAL_H_
#define SYNCGRADS_WORKER_RUN_STOP_SIGNAL_H_

#include <atomic>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace syncgrads {

// From its construction on, or from Block on, SIGTERM and SIGINT no longer end the
// process. There is one of these in a process, made before any other thread, since
// threads inherit which signals they take.
//
// Thread-safe.
class StopSignal {
 public:
  // The first thing that a program does: a signal that comes from now on waits for
  // the StopSignal.
  static void Block();

  StopSignal();
  // Ends the watch; the signals stay blocked.
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // Whether one of the signals has come.
  bool requested() const { return requested_.load(); }

  // Calls `action` once, from a thread of its own, if `grace` after a signal the
  // program has not taken it back with an empty one. Returns when no earlier
  // action is running.
  void SetLastResort(std::function<void()> action, absl::Duration grace);

 private:
  void Watch();

  std::atomic<bool> requested_{false};
  std::atomic<bool> done_{false};
  Mutex mutex_;
  std::function<void()> last_resort_ ABSL_GUARDED_BY(mutex_);
  absl::Duration grace_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  std::thread watcher_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_RUN_STOP_SIGNAL_H_
