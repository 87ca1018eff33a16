// Records what this worker does when the coordinator requests it, and reports it.

#ifndef SYNCGRADS_CLIENT_SESSION_TRACE_REPORTER_H_
#define SYNCGRADS_CLIENT_SESSION_TRACE_REPORTER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "client/link/transport.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/signals.h"

namespace syncgrads::client {

// Owned by a Session. The recording has a thread, which exists as long as it. If another worker of
// the process is recording, it reports the events, and this one reports none. A report that cannot
// be sent is dropped: training does not depend on it. Thread-safe.
class TraceReporter {
 public:
  // `transport` must outlive this object.
  TraceReporter(std::string coordinator, Transport& transport)
      : coordinator_(std::move(coordinator)), transport_(transport) {}
  // Calls Stop, and waits for the thread.
  ~TraceReporter();

  // Begins a recording. One that is in progress ends without a report: the coordinator requests a
  // new one only if nobody waits for the one before. If the length is zero, the recording of this
  // trace ends now, and is reported. Ignored after Stop.
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
    // Whether the thread has nothing left to do; guarded by `mutex_`.
    bool done = false;

    void Drop() {
      dropped = true;
      over = true;
    }
  };

  void Run(const TraceRequested& asked, MemberId self, Recording& recording);

  const std::string coordinator_;
  Transport& transport_;

  Mutex mutex_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  // The newest one; null before the first.
  std::shared_ptr<Recording> recording_ ABSL_GUARDED_BY(mutex_);
  // The thread of the newest recording. It joins the one before.
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_SESSION_TRACE_REPORTER_H_
