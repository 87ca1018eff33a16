// Waiting for answers, with a deadline that says whom it was for.

#ifndef SYNCGRADS_CLIENT_WAIT_H_
#define SYNCGRADS_CLIENT_WAIT_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/data_plane.h"
#include "client/group_rounds.h"

namespace syncgrads::client {

// Waits until all of `chunks` are done or one has failed, and returns its error.
// Shortly before `timeout` has passed, the servers are asked what they wait for.
//
// Errors:
//   DeadlineExceeded  has the servers' answers; the wait can be repeated
//   others            as the chunk failed
absl::Status AwaitAnswers(GroupRounds& rounds, GroupRounds::Chunks chunks, absl::Duration timeout,
                          DataPlane& plane);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_WAIT_H_
