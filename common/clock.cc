#include "common/clock.h"

#include <chrono>

namespace syncgrads {
namespace {

int64_t CountedNanos() {
  const auto counted = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(counted).count();
}

class RealClock : public Clock {
 public:
  absl::Time Now() const override { return MonotonicNow(); }
};

}  // namespace

int64_t MonotonicNanos() {
  static const int64_t wall_at_zero = absl::GetCurrentTimeNanos() - CountedNanos();
  return wall_at_zero + CountedNanos();
}

absl::Time MonotonicNow() { return absl::FromUnixNanos(MonotonicNanos()); }

const Clock& Clock::Real() {
  static const RealClock* const clock = new RealClock;
  return *clock;
}

}  // namespace syncgrads
