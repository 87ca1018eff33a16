// Records a timeline of a job on all servers and workers.

#ifndef SYNCGRADS_CLIENT_PSCTL_TRACE_H_
#define SYNCGRADS_CLIENT_PSCTL_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/psctl/admin.h"

namespace syncgrads::client {

// The most memory, in bytes, that the events of all processes may take.
inline constexpr size_t kMaxTimelineBytes = size_t{1} << 30;

struct TraceOptions {
  // HOST:PORT of any server.
  std::string server;
  // Empty: the only job.
  std::string job;
  Caller caller;
  // The time for each call, beside the recording.
  absl::Duration timeout;
  absl::Duration length;
  // The file to write.
  std::string path;
  // What a server sends beyond this is named as missing.
  size_t max_bytes = kMaxTimelineBytes;
};

// What a file has.
struct TraceSummary {
  std::string path;
  uint64_t events = 0;
  uint64_t lost_events = 0;
  // In nanoseconds: the largest error of a process's clock.
  uint64_t clock_error_ns = 0;
  // A line for each server and each worker whose events are missing.
  std::vector<std::string> missing;
};

// Records for `length`, or until StopTimeline, and writes the file. Calls `on_begun`, with the name
// of the job, when the recording begins.
//
// Errors:
//   InvalidArgument    no job is named, and there is not exactly one
//   PermissionDenied   the file cannot be written
//   ResourceExhausted  another trace is in progress
//   Unavailable        no server answers
//   others             those of Admin.Trace on server 0
absl::StatusOr<TraceSummary> RecordTimeline(
    const TraceOptions& options, const std::function<void(const std::string&)>& on_begun);

// Ends the recording of the job on all servers and workers. Returns the name of the job if there
// was one, and otherwise nullopt. Uses `server`, `job`, `caller` and `timeout`.
//
// Errors:
//   InvalidArgument  no job is named, and there is not exactly one
//   Unavailable      no server answers
//   others           those of Admin.StopTrace
absl::StatusOr<std::optional<std::string>> StopTimeline(const TraceOptions& options);

// Returns lines for people.
std::string TextOf(const TraceSummary& summary);
// Returns one line, an object with the fields `path`, `events`, `lost_events`, `clock_error_us` and
// `missing`.
std::string JsonOf(const TraceSummary& summary);
// Returns Unavailable if something is missing.
absl::Status CheckComplete(const TraceSummary& summary);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_PSCTL_TRACE_H_
