// SIGTERM and SIGINT as a question that a program asks when it suits it.

#ifndef SYNCGRADS_WORKER_RUN_STOP_SIGNAL_H_
#define SYNCGRADS_WORKER_RUN_STOP_SIGNAL_H_

#include <atomic>
#include <functional>
#include <list>
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

  // While it lives: what to do if the program has not stopped by itself. There may be
  // several at a time.
  class LastResort {
   public:
    // Calls `action` once, from a thread of its own, when `grace` has passed since a
    // signal. `stop` outlives this object.
    LastResort(StopSignal& stop, std::function<void()> action, absl::Duration grace);
    // Returns when the action is not running.
    ~LastResort();
    LastResort(const LastResort&) = delete;
    LastResort& operator=(const LastResort&) = delete;

   private:
    friend class StopSignal;
    StopSignal& stop_;
    std::function<void()> action_;  // empty once it has been called
    const absl::Duration grace_;
  };

 private:
  void Watch();

  std::atomic<bool> requested_{false};
  std::atomic<bool> done_{false};
  Mutex mutex_;
  std::list<LastResort*> last_resorts_ ABSL_GUARDED_BY(mutex_);
  std::thread watcher_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_RUN_STOP_SIGNAL_H_
