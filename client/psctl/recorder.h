// A recording that goes on while psctl has ended: `psctl trace start` and `psctl trace stop`.
//
// `start` forks a process, the recorder. As long as it lives, it holds the lock of a file that is
// named after the server and the job. When it has recorded, it writes its result to this file.
// `stop` ends the recording on the servers, waits for the lock, and prints the result.

#ifndef SYNCGRADS_CLIENT_PSCTL_RECORDER_H_
#define SYNCGRADS_CLIENT_PSCTL_RECORDER_H_

#include <functional>
#include <ostream>
#include <string>

#include "absl/status/status.h"
#include "client/psctl/trace.h"

namespace syncgrads::client {

struct RecorderOptions {
  // A directory for this user only, which is created. The files in it have the locks.
  std::string directory;
  // `server` and `job` name the file. `caller` is not used.
  TraceOptions trace;
  // Print JSON.
  bool json = false;
};

// Starts a recorder, and returns when it records. `connect` is called in the recorder. Must be
// called before this process uses gRPC, whose threads a fork does not copy.
//
// Errors:
//   FailedPrecondition  a recorder is running
//   PermissionDenied    the directory or the file with the timeline cannot be used
//   others              those of RecordTimeline
absl::Status StartRecorder(const RecorderOptions& options, const std::function<Caller()>& connect,
                           std::ostream& out);

// Ends the recording, waits until the recorder has written its file, and prints its summary.
//
// Errors:
//   NotFound          there is neither a recording nor a result that was not printed
//   DeadlineExceeded  the recorder has not ended in 30 s
//   Unavailable       servers or workers are missing; the file has what the others recorded
//   others            those of StopTimeline, and of RecordTimeline in the recorder
absl::Status StopRecorder(const RecorderOptions& options, const Caller& caller, std::ostream& out);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_PSCTL_RECORDER_H_
