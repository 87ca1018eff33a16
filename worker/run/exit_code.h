// The exit codes of ps-worker.

#ifndef SYNCGRADS_WORKER_RUN_EXIT_CODE_H_
#define SYNCGRADS_WORKER_RUN_EXIT_CODE_H_

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace syncgrads {

// Returns the exit code of a worker. Codes 1 to 127 are permanent: the same command will
// fail in the same way. Codes 128 to 255 are retryable.
//
//   code  status               examples
//   0     OK                   trained, evaluated, predicted; served data until a signal
//   1     any other            an error inside the program
//   2     InvalidArgument      a wrong flag, job file or table
//   3     NotFound             a missing file
//   4     FailedPrecondition   another protocol version, or another world size
//   5     PermissionDenied     another token; a file that may not be read
//   6     Unimplemented        a device that this build does not support
//   7     AlreadyExists        a live worker has this name or rank
//   8     DataLoss             a damaged file; replicas that differ
//   143   Cancelled            stopped by SIGTERM, SIGINT or SIGUSR1
//   200   Unavailable          no server; the process that serves the data is gone
//   201   DeadlineExceeded     a server, or other workers, took too long
//   202   Aborted              the job is over, or has a new generation
//   203   ResourceExhausted    the job has all its workers; a full disk
//   204   any but OK           the worker's membership is over: its lease ended, the servers
//                              are gone, or they have lost the job's state
//
// `membership` is the client's status; OK if there is no client.
int ExitCodeOf(const absl::Status& status, const absl::Status& membership);

// Combines the exit codes of the workers of one process into one: the first permanent
// code, else the first retryable code except 143, else 143, else 0.
int WorstExitCode(absl::Span<const int> codes);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_RUN_EXIT_CODE_H_
