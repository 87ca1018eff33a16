#include "common/trace/trace.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/random_number.h"
#include "common/trace/trace_ring.h"

namespace syncgrads {
namespace {

constexpr absl::Duration kCollectEvery = absl::Milliseconds(20);

// The recording of this process.
struct Recording {
  struct Thread {
    std::shared_ptr<TraceRing> ring;
    TracedThread records;
    // The events of each collection. One vector of all of them would be copied whenever it grows,
    // which takes more time than to record an event.
    std::vector<std::vector<TraceEvent>> collected;
  };

  Mutex mutex;
  bool in_progress ABSL_GUARDED_BY(mutex) = false;
  std::vector<Thread> threads ABSL_GUARDED_BY(mutex);
  // Counts the events of threads for which there is no ring.
  std::shared_ptr<TraceRing> no_ring ABSL_GUARDED_BY(mutex);
  size_t events ABSL_GUARDED_BY(mutex) = 0;
};

// Never destroyed: threads may record until the process ends.
Recording& TheRecording() {
  static auto* const recording = new Recording();
  return *recording;
}

thread_local const char* role_of_thread = nullptr;
// Owned by the recording, so that the end of the recording frees it.
thread_local std::weak_ptr<TraceRing> ring_of_thread;

std::string NameOfThread() {
  if (role_of_thread != nullptr) return role_of_thread;
  char name[16] = "";
  return pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 ? name : "";
}

// Returns a ring for this thread; null if no recording is in progress.
std::shared_ptr<TraceRing> AddThread() {
  Recording& recording = TheRecording();
  MutexLock lock(recording.mutex);
  if (!recording.in_progress) return nullptr;
  if (recording.threads.size() == kMaxTracedThreads) return recording.no_ring;
  auto ring = std::make_shared<TraceRing>(kTraceRingEvents);
  recording.threads.push_back(
      {ring, {static_cast<uint32_t>(syscall(SYS_gettid)), NameOfThread(), {}}, {}});
  return ring;
}

void Collect(Recording& recording) {
  MutexLock lock(recording.mutex);
  for (Recording::Thread& thread : recording.threads) {
    std::vector<TraceEvent> events;
    recording.events += thread.ring->Drain(events, kMaxTraceEvents - recording.events);
    if (!events.empty()) thread.collected.push_back(std::move(events));
  }
}

// Returns the events of a thread, and frees what was collected of them.
TracedThread Joined(Recording::Thread thread) {
  size_t count = 0;
  for (const std::vector<TraceEvent>& events : thread.collected) count += events.size();
  thread.records.events.reserve(count);
  for (std::vector<TraceEvent>& events : thread.collected) {
    thread.records.events.insert(thread.records.events.end(), events.begin(), events.end());
    events = {};
  }
  return std::move(thread.records);
}

}  // namespace

int64_t TraceTime(absl::Time time) { return absl::ToUnixNanos(time); }

int64_t TraceNow() { return MonotonicNanos(); }

void RecordTraceEvent(const TraceEvent& event) {
  if (!IsTracing()) return;
  std::shared_ptr<TraceRing> ring = ring_of_thread.lock();
  if (ring == nullptr) {
    ring = AddThread();
    if (ring == nullptr) return;
    ring_of_thread = ring;
  }
  ring->Add(event);
}

void TraceSpan::Record() {
  event_.end = TraceNow();
  RecordTraceEvent(event_);
}

const char* InternTraceName(absl::string_view name) {
  static auto* const mutex = new Mutex();
  static auto* const names = new std::set<std::string, std::less<>>();
  MutexLock lock(*mutex);
  const auto found = names->find(name);
  if (found != names->end()) return found->c_str();
  if (names->size() == kMaxTraceNames) return "other";
  return names->emplace(name).first->c_str();
}

void SetTraceRole(const char* role) { role_of_thread = role; }

uint64_t TraceProcess() {
  static const uint64_t process = DrawRandomNumber();
  return process;
}

uint32_t TraceJob(absl::string_view job) {
  // FNV-1a. 0 is kept for events without a job.
  uint32_t hash = 2166136261;
  for (const char c : job) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619;
  return hash == 0 ? 1 : hash;
}

absl::StatusOr<TraceRecords> RecordTrace(absl::Duration length, const std::atomic<bool>& stop) {
  Recording& recording = TheRecording();
  {
    MutexLock lock(recording.mutex);
    if (recording.in_progress) {
      return absl::AlreadyExistsError("another recording of this process is in progress");
    }
    recording.in_progress = true;
    recording.no_ring = std::make_shared<TraceRing>(0);
  }
  internal::tracing.store(true, std::memory_order_relaxed);
  const absl::Time end = MonotonicNow() + std::min(length, kMaxTraceLength);
  while (!stop.load() && MonotonicNow() < end) {
    absl::SleepFor(std::min(kCollectEvery, end - MonotonicNow()));
    Collect(recording);
  }
  internal::tracing.store(false, std::memory_order_relaxed);
  Collect(recording);
  TraceRecords records;
  MutexLock lock(recording.mutex);
  records.lost = recording.no_ring->lost();
  for (Recording::Thread& thread : recording.threads) {
    records.lost += thread.ring->lost();
    records.threads.push_back(Joined(std::move(thread)));
  }
  recording.threads.clear();
  recording.no_ring = nullptr;
  recording.events = 0;
  recording.in_progress = false;
  return records;
}

}  // namespace syncgrads
