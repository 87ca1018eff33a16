// Records what this worker does when the coordinator requests it, and reports it.

#ifndef SYNCGRADS_CLIENT_SESSION_TRACE_REPORTER_H_
#define SYNCGRADS_CLIENT_SESSION_TRACE_REPORTER_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
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
  // new one only if nobody waits for the one before. Ignored after Stop.
  void Start(const TraceRequested& asked, MemberId self);

  // Ends the recording without a report. Does not block.
  void Stop();

 private:
  void Run(const TraceRequested& asked, MemberId self, const std::atomic<bool>& stop);

  const std::string coordinator_;
  Transport& transport_;

  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  // Ends the newest recording.
  std::shared_ptr<std::atomic<bool>> stop_ ABSL_GUARDED_BY(mutex_) =
      std::make_shared<std::atomic<bool>>();
  // The thread of the newest recording. It joins the one before.
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_SESSION_TRACE_REPORTER_H_
