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
#include "common/trace/thread_events.h"

namespace syncgrads {
namespace {

constexpr absl::Duration kLookAtStopEvery = absl::Milliseconds(20);
constexpr size_t kMaxPieces = kMaxTraceEvents / EventMemory::kPieceEvents;

// The recording of this process.
struct Recording {
  struct Thread {
    std::shared_ptr<ThreadEvents> events;
    TracedThread named;  // without events
  };

  Mutex mutex;
  bool in_progress ABSL_GUARDED_BY(mutex) = false;
  std::shared_ptr<EventMemory> memory ABSL_GUARDED_BY(mutex);
  std::vector<Thread> threads ABSL_GUARDED_BY(mutex);
  // Counts the events of the threads beyond kMaxTracedThreads, and has no memory for them.
  std::shared_ptr<ThreadEvents> no_thread ABSL_GUARDED_BY(mutex);
};

// Never destroyed: threads may record until the process ends.
Recording& TheRecording() {
  static auto* const recording = new Recording();
  return *recording;
}

thread_local const char* role_of_thread = nullptr;
// Owned by the recording, so that the end of the recording frees it.
thread_local std::weak_ptr<ThreadEvents> events_of_thread;

std::string NameOfThread() {
  if (role_of_thread != nullptr) return role_of_thread;
  char name[16] = "";
  return pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 ? name : "";
}

// Returns where the events of this thread go; null if no recording is in progress.
std::shared_ptr<ThreadEvents> AddThread() {
  Recording& recording = TheRecording();
  MutexLock lock(recording.mutex);
  if (!recording.in_progress) return nullptr;
  if (recording.threads.size() == kMaxTracedThreads) return recording.no_thread;
  auto events = std::make_shared<ThreadEvents>(recording.memory);
  recording.threads.push_back(
      {events, {static_cast<uint32_t>(syscall(SYS_gettid)), NameOfThread(), {}}});
  return events;
}

}  // namespace

int64_t TraceTime(absl::Time time) { return absl::ToUnixNanos(time); }

int64_t TraceNow() { return MonotonicNanos(); }

void RecordTraceEvent(const TraceEvent& event) {
  if (!IsTracing()) return;
  std::shared_ptr<ThreadEvents> events = events_of_thread.lock();
  if (events == nullptr) {
    events = AddThread();
    if (events == nullptr) return;
    events_of_thread = events;
  }
  events->Add(event);
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
    recording.memory = std::make_shared<EventMemory>(kMaxPieces);
    recording.no_thread = std::make_shared<ThreadEvents>(std::make_shared<EventMemory>(0));
  }
  internal::tracing.store(true, std::memory_order_relaxed);
  const absl::Time end = MonotonicNow() + std::min(length, kMaxTraceLength);
  while (!stop.load() && MonotonicNow() < end) {
    absl::SleepFor(std::min(kLookAtStopEvery, end - MonotonicNow()));
  }
  internal::tracing.store(false, std::memory_order_relaxed);
  TraceRecords records;
  MutexLock lock(recording.mutex);
  records.lost = recording.no_thread->lost();
  for (Recording::Thread& thread : recording.threads) {
    records.lost += thread.events->lost();
    thread.named.events = thread.events->Copy();
    records.threads.push_back(std::move(thread.named));
  }
  recording.threads.clear();
  recording.memory = nullptr;
  recording.no_thread = nullptr;
  recording.in_progress = false;
  return records;
}

}  // namespace syncgrads
