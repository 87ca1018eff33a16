#include "client/session/trace_reporter.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/start_thread.h"
#include "common/trace/trace.h"

namespace syncgrads::client {
namespace {

// The coordinator waits for a report this long after the recording.
constexpr absl::Duration kTimeout = absl::Seconds(10);

}  // namespace

TraceReporter::~TraceReporter() {
  Stop();
  std::thread thread;
  {
    MutexLock lock(mutex_);
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void TraceReporter::Start(const TraceRequested& asked, MemberId self) {
  MutexLock lock(mutex_);
  if (stopped_) return;
  if (asked.length <= absl::ZeroDuration()) {
    if (recording_ != nullptr && recording_->trace == asked.trace) recording_->over = true;
    return;
  }
  if (recording_ != nullptr) recording_->Drop();
  if (waiting_.has_value()) SetDoneLocked(*waiting_->recording);
  recording_ = std::make_shared<Recording>(asked.trace);
  waiting_ = Waiting{asked, self, recording_};
  if (working_) return;
  // The former thread takes no lock any more, so this does not block.
  if (thread_.joinable()) thread_.join();
  working_ = StartThread("a trace", thread_, [this] { Work(); }).ok();
  if (working_) return;
  SetDoneLocked(*recording_);
  waiting_.reset();
}

void TraceReporter::Finish(absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  MutexLock lock(mutex_);
  const std::shared_ptr<Recording> recording = recording_;
  if (recording == nullptr) return;
  recording->over = true;
  while (!recording->done && changed_.WaitUntil(mutex_, deadline)) continue;
}

void TraceReporter::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  if (recording_ != nullptr) recording_->Drop();
}

void TraceReporter::Work() {
  while (true) {
    Waiting next;
    {
      MutexLock lock(mutex_);
      if (!waiting_.has_value()) {
        working_ = false;
        return;
      }
      next = *std::move(waiting_);
      waiting_.reset();
    }
    Run(next.asked, next.self, *next.recording);
    MutexLock lock(mutex_);
    SetDoneLocked(*next.recording);
  }
}

void TraceReporter::Run(const TraceRequested& asked, MemberId self, Recording& recording) {
  if (recording.dropped) return;
  absl::StatusOr<TraceRecords> records = RecordTrace(asked.length, recording.over);
  if (recording.dropped) return;
  const TraceReport report{asked.trace, self, records.ok() ? *std::move(records) : TraceRecords()};
  transport_.ReportTrace(coordinator_, report, kTimeout, recording.dropped).IgnoreError();
}

void TraceReporter::SetDoneLocked(Recording& recording) {
  recording.done = true;
  changed_.NotifyAll();
}

}  // namespace syncgrads::client
