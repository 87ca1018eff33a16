// The exit codes of ps-worker.

#ifndef SYNCGRADS_WORKER_RUN_EXIT_CODE_H_
#define SYNCGRADS_WORKER_RUN_EXIT_CODE_H_

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace syncgrads {

// 1 to 127 are permanent: starting the worker again as it is will fail again.
// 128 to 255 are retryable.
//
//   code  status               such as
//   0     OK                   trained, evaluated, predicted; data served until a signal
//   1     any other            an error inside the program
//   2     InvalidArgument      a wrong flag, job file or table
//   3     NotFound             a file is missing
//   4     FailedPrecondition   another protocol version, or another world size
//   5     PermissionDenied     another token; a file that may not be read
//   6     Unimplemented        a device that this build does not have
//   7     AlreadyExists        a live worker has this name or rank
//   8     DataLoss             a damaged file; replicas that differ
//   143   Cancelled            told to stop by SIGTERM or SIGINT
//   200   Unavailable          no server; the process that serves the data is gone
//   201   DeadlineExceeded     a server, or other workers, took too long
//   202   Aborted              the job is over, or was started afresh
//   203   ResourceExhausted    the job has its workers; a full disk
//   204   any but OK           the servers took this worker for dead, are gone, or
//                              have lost the job's state: its membership is over
//
// `membership` is the client's status, or OK without a client.
int ExitCodeOf(const absl::Status& status, const absl::Status& membership);

// Of several workers' codes the one that says most about what to do: the first that is
// permanent, else the first that is retryable but for 143, else 143, else 0.
int WorstExitCode(absl::Span<const int> codes);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_RUN_EXIT_CODE_H_
