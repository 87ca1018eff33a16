// Records what this worker does when the coordinator requests it, and reports it.

#ifndef SYNCGRADS_CLIENT_SESSION_TRACE_REPORTER_H_
#define SYNCGRADS_CLIENT_SESSION_TRACE_REPORTER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "client/link/transport.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/signals/signals.h"

namespace syncgrads::client {

// Owned by a Session. All recordings are made on one thread, which exists while there are
// recordings to make. If another worker of the process is recording, it reports the events, and
// this one reports none. A report that cannot be sent is dropped, and a recording for which the
// system has no thread is not made: training does not depend on it. Thread-safe.
class TraceReporter {
 public:
  // `transport` must outlive this object.
  TraceReporter(std::string coordinator, Transport& transport)
      : coordinator_(std::move(coordinator)), transport_(transport) {}
  // Calls Stop, and waits for the thread.
  ~TraceReporter();

  // Begins a recording. One that is in progress ends without a report: the coordinator requests a
  // new one only if nobody waits for the one before. The new one begins when the one before has
  // ended; of several that wait for this, only the newest is made. If the length is zero, the
  // recording of this trace ends now, and is reported. Ignored after Stop. Does not block.
  void Start(const TraceRequested& asked, MemberId self);

  // Ends the recording now, and waits until it has been reported, for at most `timeout`. Returns at
  // once if there is no recording.
  void Finish(absl::Duration timeout);

  // Ends the recording without a report. Does not block.
  void Stop();

 private:
  // One recording and its report.
  struct Recording {
    explicit Recording(uint64_t number) : trace(number) {}

    const uint64_t trace;
    // Ends the recording.
    std::atomic<bool> over{false};
    // Drops the report.
    std::atomic<bool> dropped{false};
    // Whether nothing is left to do for it; guarded by `mutex_`.
    bool done = false;

    void Drop() {
      dropped = true;
      over = true;
    }
  };

  // A recording that the thread has not begun.
  struct Waiting {
    TraceRequested asked;
    MemberId self{};
    std::shared_ptr<Recording> recording;
  };

  // The body of the thread: makes recordings until none waits.
  void Work();
  void Run(const TraceRequested& asked, MemberId self, Recording& recording);
  // Ends the wait of Finish for this recording.
  void SetDoneLocked(Recording& recording) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string coordinator_;
  Transport& transport_;

  Mutex mutex_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  // The newest one; null before the first.
  std::shared_ptr<Recording> recording_ ABSL_GUARDED_BY(mutex_);
  std::optional<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  // Whether the thread will look at `waiting_` again.
  bool working_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_SESSION_TRACE_REPORTER_H_
