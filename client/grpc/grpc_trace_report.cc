#include "client/grpc/grpc_trace_report.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/grpc/grpc_channel.h"
#include "common/clock.h"
#include "common/contract/trace.h"
#include "common/rpc/status.h"
#include "common/status_macros.h"
#include "common/trace/clock_offset.h"
#include "common/trace/trace.h"
#include "proto/control.grpc.pb.h"

namespace syncgrads::client {
namespace {

constexpr absl::Duration kPause = absl::Milliseconds(50);
constexpr absl::Duration kCall = absl::Seconds(2);

class TraceSender {
 public:
  TraceSender(const std::string& address, const ChannelSecurity& security, absl::Time deadline,
              const std::atomic<bool>& stop)
      : stub_(v1::Control::NewStub(NewChannel(address, security))),
        security_(security),
        deadline_(deadline),
        stop_(stop) {}

  // Sends a report, again and again while the coordinator is unavailable.
  absl::Status Send(const v1::TraceReport& report) {
    while (!stop_) {
      if (MonotonicNow() >= deadline_) {
        return absl::DeadlineExceededError("the trace was not reported in time");
      }
      grpc::ClientContext context;
      context.set_deadline(absl::ToChronoTime(absl::Now() + kCall));
      security_.Authorize(context);
      v1::TraceReportReply reply;
      const int64_t sent = TraceNow();
      const absl::Status called = FromGrpc(stub_->ReportTrace(&context, report, &reply));
      if (called.ok()) offset_.Add(sent, reply.clock_ns(), TraceNow());
      if (!absl::IsUnavailable(called) && !absl::IsDeadlineExceeded(called)) return called;
      absl::SleepFor(kPause);
    }
    return absl::CancelledError("the worker is leaving");
  }

  const ClockOffset& offset() const { return offset_; }

 private:
  const std::unique_ptr<v1::Control::Stub> stub_;
  const ChannelSecurity& security_;
  const absl::Time deadline_;
  const std::atomic<bool>& stop_;
  ClockOffset offset_;
};

}  // namespace

absl::Status SendTraceReport(const std::string& address, const ChannelSecurity& security,
                             const TraceReport& report, absl::Duration timeout,
                             const std::atomic<bool>& stop) {
  TraceSender sender(address, security, MonotonicNow() + timeout, stop);
  v1::TraceReport message;
  message.set_trace(report.trace);
  message.set_member(ToNumber(report.member));
  for (int i = 0; i < kClockReadings; ++i) SYNCGRADS_RETURN_IF_ERROR(sender.Send(message));
  std::vector<v1::TracePart> parts = ToProto(report.records);
  for (size_t i = 0; i < parts.size(); ++i) {
    v1::ProcessTrace& process = *message.mutable_process();
    process.set_process(TraceProcess());
    process.set_clock_offset_ns(sender.offset().offset());
    process.set_clock_error_ns(sender.offset().error());
    *process.mutable_part() = std::move(parts[i]);
    message.set_last(i + 1 == parts.size());
    SYNCGRADS_RETURN_IF_ERROR(sender.Send(message));
  }
  return absl::OkStatus();
}

}  // namespace syncgrads::client
