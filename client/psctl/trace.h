// Records a timeline of a job on all servers and workers.

#ifndef SYNCGRADS_CLIENT_PSCTL_TRACE_H_
#define SYNCGRADS_CLIENT_PSCTL_TRACE_H_

#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/psctl/admin.h"

namespace syncgrads::client {

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
};

// Records for `length`, writes the file, and prints a summary to `out`, with a line for each server
// and each worker whose events are missing.
//
// Errors:
//   InvalidArgument    no job is named, and there is not exactly one
//   PermissionDenied   the file cannot be written
//   ResourceExhausted  another trace is in progress
//   Unavailable        servers or workers are missing; the file has what the others recorded
//   others             those of Admin.Trace on server 0
absl::Status RecordTimeline(const TraceOptions& options, std::ostream& out);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_PSCTL_TRACE_H_
