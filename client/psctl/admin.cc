#include "client/psctl/admin.h"

#include <grpc/grpc.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/grpc/grpc_channel.h"
#include "client/psctl/escaped_output.h"
#include "common/names.h"
#include "common/rpc/status.h"
#include "common/trace/trace.h"

namespace syncgrads::client {
namespace {

std::unique_ptr<v1::Admin::Stub> NewStub(const Admin::Options& options) {
  // Once for this process and its end: otherwise gRPC would end all of its threads with the last
  // channel, and begin them again with the next. Not earlier, because the process may fork.
  [[maybe_unused]] static const bool initialized = [] {
    grpc_init();
    return true;
  }();
  return v1::Admin::NewStub(NewChannel(options.server, options.caller.security));
}

}  // namespace

Admin::Admin(Options options) : options_(std::move(options)), stub_(NewStub(options_)) {}

void Admin::Prepare(grpc::ClientContext& context, absl::Duration timeout) const {
  context.set_wait_for_ready(options_.wait_for_connection);
  options_.caller.security.Authorize(context);
  if (timeout == absl::InfiniteDuration()) return;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
}

absl::Status Admin::WithAddress(const absl::Status& status) const {
  return absl::Status(status.code(),
                      absl::StrCat("server at ", options_.server, ": ",
                                   Printable(status.message(), status.message().size())));
}

template <typename Request, typename Reply, typename Method>
absl::StatusOr<Reply> Admin::Call(Method method, const Request& request) {
  grpc::ClientContext context;
  Prepare(context, options_.timeout);
  Reply reply;
  const absl::Status called = FromGrpc((stub_.get()->*method)(&context, request, &reply));
  if (!called.ok()) return WithAddress(called);
  EscapeTexts(reply);
  return reply;
}

absl::StatusOr<v1::GetStatusReply> Admin::GetStatus() {
  return Call<v1::GetStatusRequest, v1::GetStatusReply>(&v1::Admin::Stub::GetStatus, {});
}

absl::StatusOr<v1::ExplainReply> Admin::Explain() {
  v1::ExplainRequest request;
  request.set_job(options_.job);
  request.set_token(options_.caller.token);
  return Call<v1::ExplainRequest, v1::ExplainReply>(&v1::Admin::Stub::Explain, request);
}

absl::StatusOr<uint32_t> Admin::RequestCheckpoint() {
  v1::CheckpointRequest request;
  request.set_job(options_.job);
  request.set_token(options_.caller.token);
  const auto reply =
      Call<v1::CheckpointRequest, v1::CheckpointReply>(&v1::Admin::Stub::Checkpoint, request);
  if (!reply.ok()) return reply.status();
  return reply->workers();
}

absl::StatusOr<uint64_t> Admin::SetLearningRate(double factor, const std::string& by) {
  v1::SetLearningRateRequest request;
  request.set_job(options_.job);
  request.set_token(options_.caller.token);
  request.set_factor(factor);
  request.set_by(by);
  const auto reply = Call<v1::SetLearningRateRequest, v1::SetLearningRateReply>(
      &v1::Admin::Stub::SetLearningRate, request);
  if (!reply.ok()) return reply.status();
  return reply->epoch();
}

absl::Status Admin::Evict(const std::string& worker, const std::string& reason) {
  v1::EvictRequest request;
  request.set_job(options_.job);
  request.set_token(options_.caller.token);
  request.set_worker(worker);
  request.set_reason(reason);
  return Call<v1::EvictRequest, v1::EvictReply>(&v1::Admin::Stub::Evict, request).status();
}

absl::Status Admin::Readmit(const std::string& worker) {
  v1::ReadmitRequest request;
  request.set_job(options_.job);
  request.set_token(options_.caller.token);
  request.set_worker(worker);
  return Call<v1::ReadmitRequest, v1::ReadmitReply>(&v1::Admin::Stub::Readmit, request).status();
}

absl::StatusOr<uint32_t> Admin::Drain(const std::string& server_token) {
  v1::DrainRequest request;
  request.set_server_token(server_token);
  const auto reply = Call<v1::DrainRequest, v1::DrainReply>(&v1::Admin::Stub::Drain, request);
  if (!reply.ok()) return reply.status();
  return reply->jobs();
}

absl::Status Admin::ReadClock(ClockOffset& clock) {
  const int64_t sent = TraceNow();
  const auto reply =
      Call<v1::ReadClockRequest, v1::ReadClockReply>(&v1::Admin::Stub::ReadClock, {});
  if (reply.ok()) clock.Add(sent, reply->clock_ns(), TraceNow());
  return reply.status();
}

absl::Status Admin::Trace(absl::Duration length,
                          const std::function<absl::Status(v1::TraceReply)>& on_reply) {
  v1::TraceRequest request;
  request.set_job(options_.job);
  request.set_token(options_.caller.token);
  request.set_seconds(absl::ToDoubleSeconds(length));
  grpc::ClientContext context;
  Prepare(context, length + options_.timeout);
  const auto reader = stub_->Trace(&context, request);
  v1::TraceReply reply;
  absl::Status accepted;
  while (reader->Read(&reply)) {
    if (!accepted.ok()) continue;  // received before the call was cancelled
    accepted = on_reply(std::move(reply));
    if (!accepted.ok()) context.TryCancel();
  }
  const absl::Status traced = FromGrpc(reader->Finish());
  if (!accepted.ok()) return WithAddress(accepted);
  return traced.ok() ? traced : WithAddress(traced);
}

absl::StatusOr<bool> Admin::StopTrace() {
  v1::StopTraceRequest request;
  request.set_job(options_.job);
  request.set_token(options_.caller.token);
  const auto reply =
      Call<v1::StopTraceRequest, v1::StopTraceReply>(&v1::Admin::Stub::StopTrace, request);
  if (!reply.ok()) return reply.status();
  return reply->stopped();
}

absl::Status Admin::Events(const v1::EventsRequest& request, grpc::ClientContext& context,
                           const std::function<void(v1::Event)>& on_event) {
  Prepare(context, request.follow() ? absl::InfiniteDuration() : options_.timeout);
  const auto reader = stub_->Events(&context, request);
  v1::EventsReply reply;
  while (reader->Read(&reply)) {
    for (v1::Event& event : *reply.mutable_events()) {
      EscapeTexts(event);
      on_event(std::move(event));
    }
  }
  const absl::Status ended = FromGrpc(reader->Finish());
  return ended.ok() ? ended : WithAddress(ended);
}

}  // namespace syncgrads::client
