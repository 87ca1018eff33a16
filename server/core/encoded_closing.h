// The arithmetic that closes a round of a chunk whose results are encoded.

#ifndef SYNCGRADS_SERVER_CORE_ENCODED_CLOSING_H_
#define SYNCGRADS_SERVER_CORE_ENCODED_CLOSING_H_

#include "absl/types/span.h"
#include "common/layout.h"
#include "common/update_rule.h"
#include "server/core/closing.h"
#include "server/state/slot.h"

namespace syncgrads::server {

// Averages or sums `contributions` (in rank order) with what the results before have
// lost, and encodes that into `out`, block by block. `previous` is the round before, or
// null. Where a sum is not finite, or the guard has given up on codecs, the result is
// as it is. So is it where contributions are to be encoded, and none of them is: it then
// has all that was lost before, and the guard begins anew. The residual of a span that nobody
// contributed to stays as it was.
Closed CloseEncodedReduction(const Chunk& chunk, Reduction reduction,
                             absl::Span<const Seated> contributions, const Slot* previous,
                             Slot& out, bool check_finite = false);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ENCODED_CLOSING_H_
