// Durations from the wire.

#ifndef SYNCGRADS_COMMON_CONTRACT_MILLISECONDS_H_
#define SYNCGRADS_COMMON_CONTRACT_MILLISECONDS_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/time/time.h"

namespace syncgrads {

// A count that does not fit into int64 is the largest one that does: absl::Milliseconds would make
// it negative.
inline absl::Duration MillisecondsFromWire(uint64_t count) {
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  return absl::Milliseconds(static_cast<int64_t>(std::min(count, kMost)));
}

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CONTRACT_MILLISECONDS_H_
