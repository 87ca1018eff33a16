#include "server/service/events/tracing.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/contract/trace.h"
#include "common/random_number.h"
#include "common/start_thread.h"
#include "common/status_macros.h"
#include "common/trace/trace.h"
#include "server/core/plan/seconds.h"

namespace syncgrads::server {
namespace {

// How long after the recording a worker has to report, and how long the caller has to read a
// message.
constexpr absl::Duration kTimeout = absl::Seconds(10);
// How often members that have gone are searched for.
constexpr absl::Duration kCheckInterval = absl::Milliseconds(100);

}  // namespace

// One call of Admin.Trace, which a thread writes to. Owned by the call and by the thread of the
// trace. Thread-safe.
class Tracing::Stream : public RequestCall::Events {
 public:
  explicit Stream(RequestCall& call) : call_(call.shared_from_this()) {}

  // Sends a message, and waits until gRPC has taken it. If the caller does not read, cancels the
  // call.
  void Write(const v1::TraceReply& reply) {
    if (over_) return;
    MutexLock lock(mutex_);
    writing_ = true;
    call_->Write(reply);
    const absl::Time deadline = MonotonicNow() + kTimeout;
    while (writing_ && changed_.WaitUntil(mutex_, deadline)) continue;
    if (!writing_) return;
    call_->Cancel({grpc::StatusCode::CANCELLED, "the trace was not read in time"});
    while (writing_) changed_.WaitUntil(mutex_, absl::InfiniteFuture());
  }

  void Finish() { call_->End(absl::OkStatus()); }

  // True once the call was cancelled or its connection has broken.
  const std::atomic<bool>& over() const { return over_; }
  // True once the recording has to end: when the call is over, or after StopRecording.
  const std::atomic<bool>& recorded() const { return recorded_; }
  void StopRecording() { recorded_ = true; }

 private:
  void OnWriteDone(bool ok) override {
    if (!ok) End();
    MutexLock lock(mutex_);
    writing_ = false;
    changed_.NotifyAll();
  }
  void OnCancel() override { End(); }
  void End() {
    over_ = true;
    recorded_ = true;
  }

  const std::shared_ptr<RequestCall> call_;
  std::atomic<bool> over_{false};
  std::atomic<bool> recorded_{false};
  Mutex mutex_;
  CondVar changed_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
};

Tracing::~Tracing() {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void Tracing::Trace(RequestCall& call, const v1::TraceRequest& request) {
  const auto stream = std::make_shared<Stream>(call);
  call.SetEvents(stream);
  const absl::Status begun = Begin(request, stream);
  if (!begun.ok()) call.End(begun);
}

absl::Status Tracing::Check(const v1::TraceRequest& request) const {
  if (!(request.seconds() > 0) || absl::Seconds(request.seconds()) > kMaxTraceLength) {
    return absl::InvalidArgumentError(absl::StrCat("a trace of ", request.seconds(),
                                                   " s: it must be more than 0 and at most ",
                                                   Seconds(kMaxTraceLength)));
  }
  return jobs_.FindFor(request.job(), request.token()).status();
}

absl::Status Tracing::Begin(const v1::TraceRequest& request,
                            const std::shared_ptr<Stream>& stream) {
  SYNCGRADS_RETURN_IF_ERROR(Check(request));
  const absl::Duration length = absl::Seconds(request.seconds());
  MutexLock lock(mutex_);
  const absl::Time now = MonotonicNow();
  if (recording_until_ != absl::InfinitePast()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this server is already recording a trace, for up to ",
                     Seconds(std::max(absl::ZeroDuration(), recording_until_ - now) + kTimeout),
                     " more, and records one at a time: retry later"));
  }
  v1::TraceReply begun;
  begun.mutable_begun();
  if (coordinator_ != nullptr) {
    // Only a worker itself knows its number, so no other worker can report in its name.
    std::map<MemberId, uint64_t> traces;
    for (const MemberReport& member : coordinator_->Report(request.job()).members) {
      traces[member.member] = DrawRandomNumber();
    }
    SYNCGRADS_ASSIGN_OR_RETURN(
        const std::vector<MemberReport> workers,
        coordinator_->RequestTrace(request.job(), request.token(), traces, length));
    begun.mutable_begun()->set_workers(static_cast<uint32_t>(workers.size()));
    reports_ = std::make_shared<TraceReports>(workers, traces);
    traces_ = std::move(traces);
  }
  recording_until_ = now + length;
  job_ = request.job();
  stream_ = stream;
  // The thread of the last trace has ended, or only returns.
  if (thread_.joinable()) thread_.join();
  absl::Status started = StartThread(
      "a trace", thread_, [this, stream, begun, length, job = request.job(), reports = reports_] {
        stream->Write(begun);
        Run(job, length, *stream, reports);
        {
          MutexLock end(mutex_);
          EndLocked();
        }
        stream->Finish();
      });
  if (!started.ok()) EndLocked();
  return started;
}

void Tracing::EndLocked() {
  recording_until_ = absl::InfinitePast();
  reports_ = nullptr;
  stream_ = nullptr;
}

absl::StatusOr<bool> Tracing::Stop(const std::string& job, const std::string& token) {
  SYNCGRADS_RETURN_IF_ERROR(jobs_.FindFor(job, token).status());
  MutexLock lock(mutex_);
  if (recording_until_ == absl::InfinitePast() || job_ != job) return false;
  recording_until_ = std::min(recording_until_, MonotonicNow());
  stream_->StopRecording();
  if (coordinator_ == nullptr) return true;
  SYNCGRADS_RETURN_IF_ERROR(
      coordinator_->RequestTrace(job, token, traces_, absl::ZeroDuration()).status());
  return true;
}

absl::Status Tracing::Report(const v1::TraceReport& report) {
  std::shared_ptr<TraceReports> reports;
  {
    MutexLock lock(mutex_);
    reports = reports_;
  }
  if (reports == nullptr) return absl::NotFoundError("no trace is in progress");
  return reports->Add(report);
}

void Tracing::Run(const std::string& job, absl::Duration length, Stream& stream,
                  const std::shared_ptr<TraceReports>& reports) {
  // If another server or a worker in this process is recording, it reports the events.
  const absl::StatusOr<TraceRecords> records = RecordTrace(length, stream.recorded());
  for (v1::TracePart& part : ToProto(records.value_or(TraceRecords()), TraceJob(job))) {
    v1::TraceReply reply;
    reply.mutable_process()->set_process(TraceProcess());
    *reply.mutable_process()->mutable_part() = std::move(part);
    stream.Write(reply);
  }
  if (reports != nullptr) SendReports(job, stream, *reports);
}

void Tracing::SendReports(const std::string& job, Stream& stream, TraceReports& reports) const {
  const absl::Time deadline = MonotonicNow() + kTimeout;
  while (!stream.over() && !reports.IsDone()) {
    std::optional<v1::ProcessTrace> process = reports.Next(MonotonicNow() + kCheckInterval);
    const bool too_late = MonotonicNow() >= deadline;
    // A worker may go on reporting, so the end does not wait for a pause.
    if (!process.has_value() || too_late) StopAwaiting(job, too_late, stream, reports);
    if (!process.has_value()) continue;
    v1::TraceReply reply;
    *reply.mutable_process() = *std::move(process);
    stream.Write(reply);
  }
}

void Tracing::StopAwaiting(const std::string& job, bool too_late, Stream& stream,
                           TraceReports& reports) const {
  const std::vector<MemberReport> members = coordinator_->Report(job).members;
  for (const MemberReport& worker : reports.Awaited()) {
    const bool present = absl::c_any_of(members, [&](const MemberReport& member) {
      return member.member == worker.member && !member.gone;
    });
    if (present && !too_late) continue;
    reports.StopAwaiting(worker.member);
    v1::TraceReply reply;
    reply.set_missing(absl::StrCat(
        "worker \"", worker.name, "\" (rank ", worker.rank.value_or(0), ") ",
        present ? absl::StrCat("did not report within ", Seconds(kTimeout), " after the recording")
                : "left the job or was dropped before it had reported"));
    stream.Write(reply);
  }
}

}  // namespace syncgrads::server
