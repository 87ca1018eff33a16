// The events of one thread that have not been collected yet.

#ifndef SYNCGRADS_COMMON_TRACE_TRACE_RING_H_
#define SYNCGRADS_COMMON_TRACE_TRACE_RING_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/trace/trace_event.h"

namespace syncgrads {

// A ring of fixed size. One thread writes and one thread reads, at the same time and without a
// lock. If the ring is full, the new event is lost and counted; a ring of size 0 only counts, and
// may have several writers.
class TraceRing {
 public:
  explicit TraceRing(size_t size) : size_(size), events_(new TraceEvent[size]) {}

  void Add(const TraceEvent& event) {
    const uint64_t written = written_.load(std::memory_order_relaxed);
    if (written - read_.load(std::memory_order_acquire) == size_) {
      lost_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    events_[written % size_] = event;
    written_.store(written + 1, std::memory_order_release);
  }

  // Moves all events, oldest first, to the end of `out`: the first `most` of them, the others are
  // lost. Returns the number of events that were moved.
  size_t Drain(std::vector<TraceEvent>& out, size_t most) {
    const uint64_t read = read_.load(std::memory_order_relaxed);
    const uint64_t written = written_.load(std::memory_order_acquire);
    uint64_t next = read;
    out.reserve(out.size() + std::min<uint64_t>(written - read, most));
    for (; next < written && next - read < most; ++next) out.push_back(events_[next % size_]);
    lost_.fetch_add(written - next, std::memory_order_relaxed);
    read_.store(written, std::memory_order_release);
    return next - read;
  }

  // The number of events that were lost.
  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  const size_t size_;
  const std::unique_ptr<TraceEvent[]> events_;
  std::atomic<uint64_t> written_{0};
  std::atomic<uint64_t> read_{0};
  std::atomic<uint64_t> lost_{0};
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_TRACE_TRACE_RING_H_
