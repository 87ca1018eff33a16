#include "common/clock.h"

#include <chrono>

namespace syncgrads {
namespace {

class RealClock : public Clock {
 public:
  absl::Time Now() const override { return MonotonicNow(); }
};

}  // namespace

absl::Time MonotonicNow() {
  struct Anchor {
    absl::Time wall = absl::Now();
    std::chrono::steady_clock::time_point count = std::chrono::steady_clock::now();
  };
  static const Anchor anchor;
  return anchor.wall + absl::FromChrono(std::chrono::steady_clock::now() - anchor.count);
}

const Clock& Clock::Real() {
  static const RealClock* const clock = new RealClock;
  return *clock;
}

}  // namespace syncgrads
