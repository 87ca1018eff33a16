// The clock that every part of the system reads.
//
// Leases, deadlines and durations are measured on a monotonic clock, so a step of the system's
// clock (NTP, a resumed VM) does not change them. Timestamps that people read come from
// absl::Now().

#ifndef SYNCGRADS_COMMON_CLOCK_H_
#define SYNCGRADS_COMMON_CLOCK_H_

#include <cstdint>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace syncgrads {

// Returns the wall-clock time of the first call in this process plus the time that CLOCK_MONOTONIC
// has counted since then. Never goes back. Differs from absl::Now() by the amount by which the
// system's clock has been stepped since the first call. Thread-safe.
absl::Time MonotonicNow();
// Returns the same in nanoseconds since 1970, in less time.
int64_t MonotonicNanos();

// The interface of a clock, so that tests can set the time. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Returns the current time. Like MonotonicNow(), it never goes back.
  virtual absl::Time Now() const = 0;

  // Returns the clock that reads MonotonicNow(). It is never destroyed.
  static const Clock& Real();
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_CLOCK_H_
