// Conversions between the message RoundWait (proto/admin.proto) and the plain struct. Thread-safe.

#ifndef SYNCGRADS_COMMON_CONTRACT_ROUND_WAIT_H_
#define SYNCGRADS_COMMON_CONTRACT_ROUND_WAIT_H_

#include "common/signals/round_wait.h"
#include "proto/admin.pb.h"

namespace syncgrads {

// Durations are rounded down to milliseconds.
v1::RoundWait ToProto(const RoundWait& wait);
// Ignores the text of the message; see ToString(const RoundWait&).
RoundWait FromProto(const v1::RoundWait& proto);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CONTRACT_ROUND_WAIT_H_
