// The traces of one server: Admin.Trace, and on the coordinator the reports of the workers.

#ifndef SYNCGRADS_SERVER_SERVICE_EVENTS_TRACING_H_
#define SYNCGRADS_SERVER_SERVICE_EVENTS_TRACING_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "proto/admin.pb.h"
#include "proto/control.pb.h"
#include "server/core/coordinator/coordinator.h"
#include "server/core/jobs/jobs.h"
#include "server/service/calls/request_call.h"
#include "server/service/events/trace_reports.h"

namespace syncgrads::server {

// Records one trace at a time, on a thread that exists as long as the trace. gRPC's threads only
// begin a trace and queue reports. Thread-safe. The coordinator is called with `mutex_` held.
class Tracing {
 public:
  // `coordinator` is null on a server that follows. The arguments must outlive this object.
  Tracing(const Jobs& jobs, Coordinator* coordinator) : jobs_(jobs), coordinator_(coordinator) {}
  // Waits for the thread of the last trace. The calls of Trace must have ended.
  ~Tracing();

  // Begins the trace that a call of Admin.Trace requests, or refuses it.
  void Trace(RequestCall& call, const v1::TraceRequest& request);

  // Ends the recording in progress of this job, here and, on the coordinator, of its workers.
  // Returns false if there is none.
  //
  // Errors: those of Admin.StopTrace
  absl::StatusOr<bool> Stop(const std::string& job, const std::string& token);

  // Takes a worker's report; see TraceReports::Add. NotFound if there is no trace.
  absl::Status Report(const v1::TraceReport& report);

 private:
  class Stream;

  // Errors: those of Admin.Trace
  absl::Status Begin(const v1::TraceRequest& request, const std::shared_ptr<Stream>& stream);
  absl::Status Check(const v1::TraceRequest& request) const;
  // The trace is over.
  void EndLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Records, and sends everything on `stream`. Runs on the thread of the trace. `reports` is null
  // on a server that follows.
  void Run(const std::string& job, absl::Duration length, Stream& stream,
           const std::shared_ptr<TraceReports>& reports);
  void SendReports(const std::string& job, Stream& stream, TraceReports& reports) const;
  // Names the workers whose reports are not awaited any more: those that are not members any more,
  // and if it is too late, all of them.
  void StopAwaiting(const std::string& job, bool too_late, Stream& stream,
                    TraceReports& reports) const;

  const Jobs& jobs_;
  Coordinator* const coordinator_;

  Mutex mutex_;
  // The trace in progress: when its recording ends. InfinitePast if there is none.
  absl::Time recording_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  // Its job, the numbers that were drawn for the job's members, and its call.
  std::string job_ ABSL_GUARDED_BY(mutex_);
  std::map<MemberId, uint64_t> traces_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  // Null if no trace with workers is in progress.
  std::shared_ptr<TraceReports> reports_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_EVENTS_TRACING_H_
