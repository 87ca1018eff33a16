// The difference of two processes' monotonic clocks.

#ifndef SYNCGRADS_COMMON_TRACE_CLOCK_OFFSET_H_
#define SYNCGRADS_COMMON_TRACE_CLOCK_OFFSET_H_

#include <cstdint>
#include <limits>

namespace syncgrads {

// How often a clock is read to estimate its offset.
inline constexpr int kClockReadings = 8;

// Estimates by how much the other process's clock is ahead of this one. The other clock is assumed
// to be read in the middle of the round trip. Of several readings, the one with the shortest round
// trip counts; the estimate is wrong by at most half of it. Not thread-safe.
class ClockOffset {
 public:
  // `sent` and `received` are of this process's clock, in nanoseconds; `other` was read between
  // them.
  void Add(int64_t sent, int64_t other, int64_t received) {
    if (received - sent >= round_trip_) return;
    round_trip_ = received - sent;
    offset_ = other - (sent + round_trip_ / 2);
  }

  // In nanoseconds. Meaningful after Add.
  int64_t offset() const { return offset_; }
  uint64_t error() const { return static_cast<uint64_t>(round_trip_ / 2 + 1); }

 private:
  int64_t round_trip_ = std::numeric_limits<int64_t>::max() - 1;
  int64_t offset_ = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_TRACE_CLOCK_OFFSET_H_
