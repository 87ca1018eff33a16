// Counts durations in buckets.

#ifndef SYNCGRADS_SERVER_CORE_ROUNDS_DURATION_HISTOGRAM_H_
#define SYNCGRADS_SERVER_CORE_ROUNDS_DURATION_HISTOGRAM_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace syncgrads::server {

// The bounds of the buckets, except the last, which has none: 1 ms, 4 ms, 16 ms, ..., 16.384 s.
inline constexpr size_t kDurationBuckets = 9;

struct DurationCounts {
  // counts[i] is the number of durations of less than 1 ms × 4^i that are in no earlier bucket. The
  // last bucket has all longer durations.
  std::array<uint64_t, kDurationBuckets> counts{};
  uint64_t sum_us = 0;

  friend bool operator==(const DurationCounts&, const DurationCounts&) = default;
};

// One thread at a time calls Add; any thread calls Read. Neither allocates or takes a lock.
class DurationHistogram {
 public:
  // A negative duration counts as zero.
  void Add(absl::Duration duration) {
    const int64_t us = std::max<int64_t>(0, absl::ToInt64Microseconds(duration));
    size_t bucket = 0;
    for (int64_t bound = 1000; bucket + 1 < kDurationBuckets && us >= bound; bound *= 4) ++bucket;
    Increase(counts_[bucket], 1);
    Increase(sum_us_, static_cast<uint64_t>(us));
  }

  // A duration that is added at the same time may be missing from a part of the result.
  DurationCounts Read() const {
    DurationCounts read;
    for (size_t i = 0; i < kDurationBuckets; ++i) {
      read.counts[i] = counts_[i].load(std::memory_order_relaxed);
    }
    read.sum_us = sum_us_.load(std::memory_order_relaxed);
    return read;
  }

 private:
  // There is one writer, so that a load and a store are enough.
  static void Increase(std::atomic<uint64_t>& number, uint64_t by) {
    number.store(number.load(std::memory_order_relaxed) + by, std::memory_order_relaxed);
  }

  std::array<std::atomic<uint64_t>, kDurationBuckets> counts_{};
  std::atomic<uint64_t> sum_us_{0};
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_ROUNDS_DURATION_HISTOGRAM_H_
