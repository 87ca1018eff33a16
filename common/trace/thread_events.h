// The events that the threads of this process have recorded.

#ifndef SYNCGRADS_COMMON_TRACE_THREAD_EVENTS_H_
#define SYNCGRADS_COMMON_TRACE_THREAD_EVENTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/mutex.h"
#include "common/trace/trace_event.h"

namespace syncgrads {

// The memory of a recording, in huge pages where the kernel has some: in pages of 4 KiB, page
// faults would take as much time as everything else in a recording. Memory that is not used costs
// nothing. Thread-safe.
class EventMemory {
 public:
  // Threads take it in pieces of this many events.
  static constexpr size_t kPieceEvents = 512;

  explicit EventMemory(size_t pieces);
  ~EventMemory();
  EventMemory(const EventMemory&) = delete;
  EventMemory& operator=(const EventMemory&) = delete;

  // Returns a piece that nobody else has; null if there is none.
  TraceEvent* Take();

 private:
  size_t pieces_;
  TraceEvent* events_ = nullptr;
  std::atomic<size_t> taken_{0};
};

// The events of one thread, which are neither moved nor copied until the recording ends.
class ThreadEvents {
 public:
  explicit ThreadEvents(std::shared_ptr<EventMemory> memory) : memory_(std::move(memory)) {}

  // Called by one thread; by any number of threads if the memory has no pieces. If there is no
  // memory left, the event is lost and counted.
  void Add(const TraceEvent& event) {
    if (next_ == end_ && !TakePiece()) return;
    *next_++ = event;
    written_.store(written_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  // Returns the events, oldest first. May be called by another thread, during Add too.
  std::vector<TraceEvent> Copy() const;

  // The number of events that were lost.
  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  bool TakePiece();

  const std::shared_ptr<EventMemory> memory_;
  TraceEvent* next_ = nullptr;  // where the next event goes, and the end of its piece
  TraceEvent* end_ = nullptr;
  std::atomic<size_t> written_{0};
  std::atomic<uint64_t> lost_{0};
  mutable Mutex mutex_;
  std::vector<const TraceEvent*> pieces_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_TRACE_THREAD_EVENTS_H_
