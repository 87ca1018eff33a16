// The arithmetic that closes a round of a chunk whose results are encoded.

#ifndef SYNCGRADS_SERVER_CORE_CLOSING_ENCODED_CLOSING_H_
#define SYNCGRADS_SERVER_CORE_CLOSING_ENCODED_CLOSING_H_

#include "absl/types/span.h"
#include "common/group/layout.h"
#include "common/update_rule.h"
#include "server/core/closing/closing.h"
#include "server/state/slot.h"

namespace syncgrads::server {

// Averages or sums `contributions` (in rank order), adds the residual, which is what earlier
// results have lost in encoding, and encodes the sum into `out`, block by block. Writes the new
// residual to `out`. The residual of a span without contributors does not change. `previous` is the
// slot of the previous round, or null if there is none.
//
// The result is raw (not encoded) in three cases:
// - Contributions are to be encoded, but all of them are raw. The result includes the whole
//   residual, and the guard is reset.
// - The guard has replaced the codec by none. The result includes the whole residual.
// - A sum is not finite. The residual does not change.
Closed CloseEncodedReduction(const Chunk& chunk, Reduction reduction,
                             absl::Span<const Seated> contributions, const Slot* previous,
                             Slot& out, bool check_finite = false);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_CLOSING_ENCODED_CLOSING_H_
