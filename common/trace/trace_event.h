// The events of a timeline: what a thread of this process did, from when until when.

#ifndef SYNCGRADS_COMMON_TRACE_TRACE_EVENT_H_
#define SYNCGRADS_COMMON_TRACE_TRACE_EVENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/ids.h"

namespace syncgrads {

// The names of the events that carry a contribution to its round, and the result back. Whoever
// merges the events of several processes finds them by these names.
inline constexpr char kTracePush[] = "push";        // worker: a chunk is encoded and queued
inline constexpr char kTraceReceive[] = "receive";  // server: a contribution takes its seat
inline constexpr char kTraceRound[] = "round";      // server: first contribution until closed
inline constexpr char kTraceReduce[] = "reduce";    // server: contributions are averaged
inline constexpr char kTraceUpdate[] = "update";    // server: averaged, and the optimizer applied
inline constexpr char kTraceResult[] = "result";    // worker: a result is copied to its place

// The numbers that belong to an event.
struct TraceArgs {
  // The member of events that belong to all members.
  static constexpr MemberId kEveryMember{~uint32_t{0}};

  enum class Kind : uint8_t { kNone, kStep, kBytes, kRound };

  Kind kind = Kind::kNone;
  uint64_t number = 0;  // the step, the bytes or the round
  // kRound only. `job` is the TraceJob of the job on a server, and 0 on a worker.
  uint32_t job = 0;
  uint32_t group = 0;
  uint32_t chunk = 0;
  uint32_t member = 0;

  static TraceArgs Step(uint64_t step) { return {Kind::kStep, step}; }
  static TraceArgs Bytes(uint64_t bytes) { return {Kind::kBytes, bytes}; }
  static TraceArgs Of(Round round, uint32_t job, GroupId group, ChunkId chunk,
                      MemberId member = kEveryMember) {
    return {Kind::kRound, ToNumber(round), job, ToNumber(group), ToNumber(chunk), ToNumber(member)};
  }

  friend bool operator==(const TraceArgs&, const TraceArgs&) = default;
};

struct TraceEvent {
  // Never freed: a literal, or the result of InternTraceName.
  const char* name = "";
  // In nanoseconds, on the clock of MonotonicNow().
  int64_t begin = 0;
  int64_t end = 0;
  TraceArgs args;
  // If true, the event may overlap with others of its thread without lying in them.
  bool overlaps = false;
};

// The events of one thread.
struct TracedThread {
  uint32_t id = 0;
  std::string name;
  std::vector<TraceEvent> events;
};

// Everything that a process has recorded.
struct TraceRecords {
  std::vector<TracedThread> threads;
  // The number of events for which there was no room.
  uint64_t lost = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_TRACE_TRACE_EVENT_H_
