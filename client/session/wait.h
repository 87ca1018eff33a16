// Waits for answers; the error after a timeout names the members that are missing.

#ifndef SYNCGRADS_CLIENT_SESSION_WAIT_H_
#define SYNCGRADS_CLIENT_SESSION_WAIT_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/rounds/group_rounds.h"
#include "client/session/data_plane.h"

namespace syncgrads::client {

// Waits until all of `chunks` are done, or one has failed. Shortly before `timeout` has passed,
// asks the servers which members they wait for.
//
// Errors:
//   DeadlineExceeded  the message has the servers' answers; the wait can be repeated
//   others            the error of the first chunk that has failed
absl::Status AwaitAnswers(GroupRounds& rounds, GroupRounds::Chunks chunks, absl::Duration timeout,
                          DataPlane& plane);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_SESSION_WAIT_H_
