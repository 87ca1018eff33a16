// Where a part of the system reads the time, so that tests can set it.

#ifndef SYNCGRADS_COMMON_CLOCK_H_
#define SYNCGRADS_COMMON_CLOCK_H_

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace syncgrads {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;

  // The system's clock; lives for ever.
  static const Clock& Real();
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CLOCK_H_
