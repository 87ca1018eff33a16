// What the workers of a job report of one trace, until it is sent on.

#ifndef SYNCGRADS_SERVER_SERVICE_EVENTS_TRACE_REPORTS_H_
#define SYNCGRADS_SERVER_SERVICE_EVENTS_TRACE_REPORTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "proto/control.pb.h"
#include "server/core/coordinator/job_report.h"

namespace syncgrads::server {

// The memory of the reports that may wait to be sent on, in bytes.
inline constexpr size_t kMaxHeldTraceBytes = size_t{32} << 20;

// Thread-safe.
class TraceReports {
 public:
  // `workers` take part in the trace. `traces` has the number that was drawn for each of them.
  TraceReports(const std::vector<MemberReport>& workers,
               const std::map<MemberId, uint64_t>& traces);

  // Holds a report until Next returns it.
  //
  // Errors:
  //   NotFound     the number is not that of the worker, or the worker does not take part or has
  //                sent its last report
  //   Unavailable  kMaxHeldTraceBytes are held; retry
  absl::Status Add(const v1::TraceReport& report);

  // Returns the oldest report that is held, and waits for one until `deadline`, as long as any
  // worker is awaited. nullopt if there is none.
  std::optional<v1::ProcessTrace> Next(absl::Time deadline);

  // The workers whose last report is awaited.
  std::vector<MemberReport> Awaited() const;
  // Whether no report is held and none is awaited.
  bool IsDone() const;
  void StopAwaiting(MemberId worker);

 private:
  struct AwaitedReport {
    MemberReport worker;
    uint64_t trace = 0;
  };
  struct Held {
    v1::ProcessTrace process;
    size_t bytes = 0;
  };

  mutable Mutex mutex_;
  CondVar changed_;
  std::map<MemberId, AwaitedReport> awaited_ ABSL_GUARDED_BY(mutex_);
  std::deque<Held> held_ ABSL_GUARDED_BY(mutex_);
  size_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_EVENTS_TRACE_REPORTS_H_
