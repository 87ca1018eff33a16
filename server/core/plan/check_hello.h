// The check of a worker's request to join a job.

#ifndef SYNCGRADS_SERVER_CORE_PLAN_CHECK_HELLO_H_
#define SYNCGRADS_SERVER_CORE_PLAN_CHECK_HELLO_H_

#include "absl/status/status.h"
#include "common/signals/signals.h"

namespace syncgrads::server {

// Checks everything that does not depend on a job's state. Thread-safe.
//
// Errors:
//   InvalidArgument     the job name, the incarnation or world_size is missing; a name, the
//                       host or the token is too long; a name or the host is not printable
//                       (common/names.h); the rank is out of range; or min_workers,
//                       world_size and max_workers contradict each other
//   FailedPrecondition  the protocol version differs
absl::Status CheckHello(const Hello& hello);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_PLAN_CHECK_HELLO_H_
