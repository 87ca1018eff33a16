// Turns SIGTERM, SIGINT and SIGUSR1 into a flag that the program polls. Schedulers of clusters can
// send either SIGTERM or SIGUSR1 before they stop a job.

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

// From construction on, or from Block on, these signals no longer end the process, with one
// exception: if stdout or stderr takes no more bytes for kLongestBlock after a signal and the last
// resorts, the process ends with exit code 143. A thread that prints would wait for ever if nobody
// reads what it prints. Otherwise the process may take its time, for example to write a checkpoint.
//
// Create one object per process, before any other thread: threads inherit the set of
// blocked signals. Thread-safe.
class StopSignal {
 public:
  static constexpr absl::Duration kLongestBlock = absl::Seconds(5);

  // Blocks the signals. A program calls this first, so that a signal that arrives before
  // the StopSignal exists is delivered to it later.
  static void Block();

  StopSignal();
  // Stops the threads; the signals stay blocked.
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // Whether one of the signals has arrived.
  bool requested() const { return requested_.load(); }

  // While this object lives, it calls `action` if the program has not stopped in time
  // after a signal. Several may exist at once.
  class LastResort {
   public:
    // After the first signal and then `grace`, the watcher thread of `stop` calls
    // `action` once, with the lock held: `action` must not create or destroy a
    // LastResort. `stop` outlives this object.
    LastResort(StopSignal& stop, std::function<void()> action, absl::Duration grace);
    // Waits until `action`, if it is running, has returned.
    ~LastResort();
    LastResort(const LastResort&) = delete;
    LastResort& operator=(const LastResort&) = delete;

   private:
    friend class StopSignal;
    StopSignal& stop_;
    std::function<void()> action_;  // empty after the call
    const absl::Duration grace_;
  };

 private:
  void Watch();
  // A thread of its own: an action of a last resort may wait for a thread that prints.
  void EndIfOutputBlocks() const;

  std::atomic<bool> requested_{false};
  // Whether a signal has arrived and the grace periods of all last resorts have passed.
  std::atomic<bool> overdue_{false};
  std::atomic<bool> done_{false};
  Mutex mutex_;
  std::list<LastResort*> last_resorts_ ABSL_GUARDED_BY(mutex_);
  std::thread watcher_;
  std::thread ender_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_RUN_STOP_SIGNAL_H_
