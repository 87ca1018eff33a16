// The arithmetic that closes a round of a chunk.
//
// One pass reads every contribution where it lies and writes the result. What is
// added is added in the order in which the contributions are given, which is rank
// order, so the result does not depend on who was first.

#ifndef SYNCGRADS_SERVER_CORE_CLOSING_H_
#define SYNCGRADS_SERVER_CORE_CLOSING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/group.h"
#include "server/core/contribution.h"
#include "server/state/slots.h"

namespace syncgrads::server {

struct Seated {
  uint32_t rank;
  const Contribution* contribution;
};

struct Closed {
  // Contributors of each span.
  std::vector<uint32_t> counts;
  // Gather: the ranks whose payloads the result is made of.
  std::vector<uint32_t> contributors;
  // Bytes of the slot's values that are the result; 0 if nobody contributed and
  // no parameters are held.
  size_t value_bytes = 0;
  // Of the result.
  Codec codec = Codec::kRaw;
  // Of averages, if it was asked: every average is finite. Where one is not, a
  // contribution is not, or several together are too large.
  bool finite = true;
};

// Whether anybody did, to any span.
bool AnybodyContributed(const std::vector<uint32_t>& counts);

// The bytes that a result can have at most.
size_t ResultBytes(const Chunk& chunk, const UpdateRule& rule, size_t contributions);

// Reduces or gathers `contributions` (in rank order) into `out`. Elements of a
// span that nobody contributed to become 0. For rules that are no optimizer.
Closed CloseReduction(const Chunk& chunk, const UpdateRule& rule,
                      absl::Span<const Seated> contributions, Slot& out, bool check_finite = false);

// Sets the parameters to what the contributor of the lowest rank has pushed; the
// optimizer's slots become zeros, or what it has pushed with them. With no contributor the counts
// are 0 and `out` is not usable.
Closed CloseInitial(const Chunk& chunk, absl::Span<const Seated> contributions, Slot& out);

// Averages the gradients and applies the optimizer to what `previous` holds,
// block by block. A span that nobody contributed to stays as it was.
Closed CloseUpdate(const Chunk& chunk, const Optimizer& optimizer,
                   absl::Span<const Seated> contributions, const Slot& previous, Slot& out,
                   bool check_finite = false);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_CLOSING_H_
