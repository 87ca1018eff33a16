// Records what the threads of this process do, for a timeline (`psctl trace`).
//
// Recording belongs to the process, not to an object: the spans are in code that all workers and
// servers of a process share. At most one recording is in progress.
//
// While nothing is recorded, a span costs one relaxed atomic load and a branch. While a recording
// is in progress, a span reads the clock twice and stores one event in memory of its thread. The
// memory is freed when the recording ends.

#ifndef SYNCGRADS_COMMON_TRACE_TRACE_H_
#define SYNCGRADS_COMMON_TRACE_TRACE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/trace/trace_event.h"

namespace syncgrads {

// The longest recording.
inline constexpr absl::Duration kMaxTraceLength = absl::Seconds(60);
// The threads of a process whose events are recorded. Events of further threads are lost.
inline constexpr size_t kMaxTracedThreads = 128;
// There is memory for this many events of one recording. Later ones are lost.
inline constexpr size_t kMaxTraceEvents = size_t{1} << 18;
// The names that InternTraceName keeps. All further ones become "other".
inline constexpr size_t kMaxTraceNames = size_t{1} << 14;

namespace internal {
inline std::atomic<bool> tracing{false};
}  // namespace internal

// Whether a recording is in progress.
inline bool IsTracing() { return internal::tracing.load(std::memory_order_relaxed); }

// Returns the monotonic clock's time in nanoseconds.
int64_t TraceNow();
int64_t TraceTime(absl::Time time);

// Stores an event of this thread if a recording is in progress.
void RecordTraceEvent(const TraceEvent& event);

// Stores an event that may overlap with others of its thread; times are those of MonotonicNow().
inline void RecordTraceWait(const char* name, absl::Time begin, absl::Time end,
                            const TraceArgs& args) {
  if (IsTracing()) RecordTraceEvent({name, TraceTime(begin), TraceTime(end), args, true});
}

// Returns a name for events that is never freed. Takes a lock: call it when a layer or a tensor is
// registered, not for each event. Thread-safe.
const char* InternTraceName(absl::string_view name);

// Names this thread in recordings. Without it, the kernel's name of the thread is used. `role` is
// a literal.
void SetTraceRole(const char* role);

// Identifies this process; it is drawn at random.
uint64_t TraceProcess();

// Returns a number for the job, by which events of several jobs on one server are told apart.
uint32_t TraceJob(absl::string_view job);

// An event from construction to destruction. `name` is a literal or an interned name.
class TraceSpan {
 public:
  explicit TraceSpan(const char* name, const TraceArgs& args = {}) {
    if (!IsTracing()) return;
    event_.name = name;
    event_.args = args;
    event_.begin = TraceNow();
  }
  ~TraceSpan() {
    if (event_.begin != 0) Record();
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  void Record();

  TraceEvent event_;
};

// Records until `length`, which is at most kMaxTraceLength, has passed or `stop` is true. Blocks.
//
// Errors:
//   AlreadyExists  another recording of this process is in progress
absl::StatusOr<TraceRecords> RecordTrace(absl::Duration length, const std::atomic<bool>& stop);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_TRACE_TRACE_H_
