#include "client/session/trace_reporter.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
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
  *stop_ = true;
  stop_ = std::make_shared<std::atomic<bool>>();
  thread_ = std::thread([this, asked, self, stop = stop_, before = std::move(thread_)]() mutable {
    if (before.joinable()) before.join();
    Run(asked, self, *stop);
  });
}

void TraceReporter::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  *stop_ = true;
}

void TraceReporter::Run(const TraceRequested& asked, MemberId self, const std::atomic<bool>& stop) {
  absl::StatusOr<TraceRecords> records = RecordTrace(asked.length, stop);
  if (stop) return;
  const TraceReport report{asked.trace, self, records.ok() ? *std::move(records) : TraceRecords()};
  transport_.ReportTrace(coordinator_, report, kTimeout, stop).IgnoreError();
}

}  // namespace syncgrads::client
