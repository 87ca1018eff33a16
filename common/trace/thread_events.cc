#include "common/trace/thread_events.h"

#include <sys/mman.h>

#include <algorithm>
#include <type_traits>

namespace syncgrads {
namespace {

static_assert(std::is_trivially_copyable_v<TraceEvent>, "events are assigned to raw memory");

constexpr size_t BytesOf(size_t pieces) {
  return pieces * EventMemory::kPieceEvents * sizeof(TraceEvent);
}

}  // namespace

EventMemory::EventMemory(size_t pieces) : pieces_(pieces) {
  if (pieces == 0) return;
  void* const mapped = mmap(nullptr, BytesOf(pieces), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    pieces_ = 0;
    return;
  }
  // The events go to ordinary pages if the kernel refuses.
  madvise(mapped, BytesOf(pieces), MADV_HUGEPAGE);
  events_ = static_cast<TraceEvent*>(mapped);
}

EventMemory::~EventMemory() {
  if (events_ != nullptr) munmap(events_, BytesOf(pieces_));
}

TraceEvent* EventMemory::Take() {
  const size_t piece = taken_.fetch_add(1, std::memory_order_relaxed);
  return piece < pieces_ ? events_ + piece * kPieceEvents : nullptr;
}

bool ThreadEvents::TakePiece() {
  TraceEvent* const piece = memory_->Take();
  if (piece == nullptr) {
    lost_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  MutexLock lock(mutex_);
  pieces_.push_back(piece);
  next_ = piece;
  end_ = piece + EventMemory::kPieceEvents;
  return true;
}

std::vector<TraceEvent> ThreadEvents::Copy() const {
  const size_t written = written_.load(std::memory_order_acquire);
  std::vector<TraceEvent> events;
  events.reserve(written);
  MutexLock lock(mutex_);
  for (const TraceEvent* piece : pieces_) {
    const size_t count = std::min(written - events.size(), EventMemory::kPieceEvents);
    events.insert(events.end(), piece, piece + count);
  }
  return events;
}

}  // namespace syncgrads
