// A contribution is what one member pushed for one round of one chunk.

#ifndef SYNCGRADS_SERVER_CORE_CLOSING_CONTRIBUTION_H_
#define SYNCGRADS_SERVER_CORE_CLOSING_CONTRIBUTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/group/group.h"
#include "common/wire/frame.h"
#include "server/core/closing/payload.h"

namespace syncgrads::server {

struct Contribution {
  // True: the member contributes nothing, and there is no payload.
  bool skip = true;
  double weight = 1;
  // The spans that the payload leaves out, ascending.
  std::vector<uint32_t> absent_spans;
  Payload payload;
  // The codec of the payload.
  Codec codec = Codec::kRaw;
};

// Checks that a push fits its chunk: its spans, weight, codec and length, and that an encoded
// payload can be decoded. The header's chunk is one of the plan's. `sender` names the sender in
// error messages, for example 'member 2'.
//
// Errors:
//   InvalidArgument  the push does not fit; the message names the thing and both values
absl::Status CheckPush(const GroupPlan& plan, const PushHeader& header, const Pieces& payload,
                       const std::string& sender);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_CLOSING_CONTRIBUTION_H_
