// What one member pushed for one round of one chunk.

#ifndef SYNCGRADS_SERVER_CORE_CONTRIBUTION_H_
#define SYNCGRADS_SERVER_CORE_CONTRIBUTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/group.h"
#include "common/wire/frame.h"
#include "server/core/payload.h"

namespace syncgrads::server {

struct Contribution {
  // Nothing is contributed, and there is no payload.
  bool skip = true;
  double weight = 1;
  // Ascending; spans that the payload leaves out.
  std::vector<uint32_t> absent_spans;
  Payload payload;
  // Of the payload.
  Codec codec = Codec::kRaw;
};

// Whether a push can be seated at all: its spans, weight, codec, and length fit
// the chunk, and what is encoded can be decoded. `sender` is for the message, as in 'rank 2
// ("worker-2")'.
//
// Errors:
//   InvalidArgument  says what does not fit, with both values
absl::Status CheckPush(const GroupPlan& plan, const PushHeader& header, const Pieces& payload,
                       const std::string& sender);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_CONTRIBUTION_H_
