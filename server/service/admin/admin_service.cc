#include "server/service/admin/admin_service.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/contract/round_wait.h"
#include "common/names.h"
#include "common/status_macros.h"
#include "common/trace/trace.h"
#include "server/access/caller.h"

namespace syncgrads::server {
namespace {

absl::Status Explained(const Jobs& jobs, const v1::ExplainRequest& request,
                       const std::string& token, v1::ExplainReply& reply) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::shared_ptr<Job> job, jobs.FindFor(request.job(), token));
  std::optional<GroupId> group;
  if (request.has_group()) group = GroupId{request.group()};
  for (const RoundWait& wait : job->Explain(group)) *reply.add_waits() = ToProto(wait);
  return absl::OkStatus();
}

}  // namespace

AdminService::AdminService(const Jobs& jobs, Coordinator* coordinator, ServerIndex self,
                           const StatusReport& status, Tracing& tracing, EventStreams& events,
                           OptimizerStreams& optimizers, UnaryAnswers& answers, Access& access,
                           OpenConnections& connections, StreamDeadlines& deadlines,
                           std::function<void()> drain)
    : CallbackService(*v1::ExplainRequest::descriptor()->file()->service(0), connections,
                      deadlines),
      jobs_(jobs),
      coordinator_(coordinator),
      self_(self),
      status_(status),
      tracing_(tracing),
      events_(events),
      optimizers_(optimizers),
      answers_(answers),
      access_(access),
      drain_(std::move(drain)) {
  Unary("Explain", &AdminService::Explain);
  Unary("Evict", &AdminService::Evict);
  Unary("Readmit", &AdminService::Readmit);
  Unary("Checkpoint", &AdminService::Checkpoint);
  Unary("SetLearningRate", &AdminService::SetLearningRate);
  Unary("GetStatus", &AdminService::GetStatus);
  Unary("Drain", &AdminService::Drain);
  Unary("StopTrace", &AdminService::StopTrace);
  Unary("ReadClock", &AdminService::ReadClock);
  Stream("ReadOptimizer", &AdminService::ReadOptimizer);
  Stream("Trace", &AdminService::Trace);
  Stream("Events", &AdminService::Events);
}

template <typename Request, typename Reply>
void AdminService::Unary(absl::string_view name,
                         absl::Status (AdminService::*method)(RequestCall&, const Request&,
                                                              Reply&)) {
  ServeUnary<Request, Reply>(
      name, [this, method](RequestCall& call, const Request& request, Reply& reply) {
        return (this->*method)(call, request, reply);
      });
}

template <typename Request>
void AdminService::Stream(absl::string_view name,
                          void (AdminService::*method)(RequestCall&, const Request&)) {
  ServeStream<Request>(name, [this, method](RequestCall& call, const Request& request) {
    (this->*method)(call, request);
  });
}

absl::Status AdminService::Guarded(const RequestCall& call, Action action, const std::string& job,
                                   const std::string& token,
                                   const std::function<absl::Status(const std::string&)>& answer) {
  SYNCGRADS_RETURN_IF_ERROR(CheckName("the job's name", job));
  const Caller caller = CallerOf(call.context(), token);
  SYNCGRADS_RETURN_IF_ERROR(access_.Check(caller, action, job));
  return access_.has_rules() ? answer("") : access_.Count(caller, answer(token));
}

absl::Status AdminService::OnCoordinator(
    const RequestCall& call, Action action, const std::string& job, const std::string& token,
    const std::function<absl::Status(const std::string&)>& answer) {
  return Guarded(call, action, job, token, [&](const std::string& checked) -> absl::Status {
    if (coordinator_ != nullptr) return answer(checked);
    return absl::FailedPreconditionError(
        absl::StrCat("server ", ToNumber(self_), " is not the coordinator, which is server 0"));
  });
}

absl::Status AdminService::Explain(RequestCall& call, const v1::ExplainRequest& request,
                                   v1::ExplainReply& reply) {
  std::string checked;
  // A caller that is refused takes no place from others.
  SYNCGRADS_RETURN_IF_ERROR(Guarded(call, Action::kExplain, request.job(), request.token(),
                                    [&](const std::string& token) {
                                      checked = token;
                                      return jobs_.FindFor(request.job(), token).status();
                                    }));
  SYNCGRADS_RETURN_IF_ERROR(answers_.Count(call, CallerOf(call.context()).peer));
  return Explained(jobs_, request, checked, reply);
}

absl::Status AdminService::Evict(RequestCall& call, const v1::EvictRequest& request,
                                 v1::EvictReply&) {
  return OnCoordinator(
      call, Action::kEvict, request.job(), request.token(),
      [&](const std::string& token) -> absl::Status {
        SYNCGRADS_RETURN_IF_ERROR(CheckName("the worker's name", request.worker()));
        return coordinator_->Evict(request.job(), token, request.worker(), request.reason());
      });
}

absl::Status AdminService::Readmit(RequestCall& call, const v1::ReadmitRequest& request,
                                   v1::ReadmitReply&) {
  return OnCoordinator(
      call, Action::kReadmit, request.job(), request.token(),
      [&](const std::string& token) -> absl::Status {
        SYNCGRADS_RETURN_IF_ERROR(CheckName("the worker's name", request.worker()));
        return coordinator_->Readmit(request.job(), token, request.worker());
      });
}

absl::Status AdminService::Checkpoint(RequestCall& call, const v1::CheckpointRequest& request,
                                      v1::CheckpointReply& reply) {
  return OnCoordinator(call, Action::kCheckpoint, request.job(), request.token(),
                       [&](const std::string& token) -> absl::Status {
                         SYNCGRADS_ASSIGN_OR_RETURN(
                             const uint32_t workers,
                             coordinator_->RequestCheckpoint(request.job(), token));
                         reply.set_workers(workers);
                         return absl::OkStatus();
                       });
}

absl::Status AdminService::SetLearningRate(RequestCall& call,
                                           const v1::SetLearningRateRequest& request,
                                           v1::SetLearningRateReply& reply) {
  return OnCoordinator(
      call, Action::kSetLearningRate, request.job(), request.token(),
      [&](const std::string& token) -> absl::Status {
        SYNCGRADS_ASSIGN_OR_RETURN(
            const uint64_t epoch,
            coordinator_->SetLearningRate(request.job(), token, request.factor(), request.by()));
        reply.set_epoch(epoch);
        return absl::OkStatus();
      });
}

void AdminService::ReadOptimizer(RequestCall& call, const v1::ReadOptimizerRequest& request) {
  v1::ReadOptimizerRequest checked = request;
  const absl::Status permitted = Guarded(call, Action::kReadOptimizer, request.job(),
                                         request.token(), [&](const std::string& token) {
                                           checked.set_token(token);
                                           return jobs_.FindFor(request.job(), token).status();
                                         });
  if (!permitted.ok()) return call.End(permitted);
  optimizers_.Read(call, checked);
}

absl::Status AdminService::GetStatus(RequestCall& call, const v1::GetStatusRequest&,
                                     v1::GetStatusReply& reply) {
  const Caller caller = CallerOf(call.context());
  // First: Allows neither reads rules that have changed nor counts wrong tokens. And a caller that
  // is refused takes no place from others.
  SYNCGRADS_RETURN_IF_ERROR(access_.CheckAnyJob(caller, Action::kGetStatus));
  SYNCGRADS_RETURN_IF_ERROR(answers_.Count(call, caller.peer));
  // A caller that may see some jobs gets these.
  const bool sees_all = access_.Allows(caller, Action::kGetStatus, kAllJobs);
  status_.FillStatus(reply);
  if (!access_.Allows(caller, Action::kEvict, kAllJobs)) HidePaths(reply);
  if (sees_all) return absl::OkStatus();
  auto& jobs = *reply.mutable_jobs();
  jobs.erase(std::remove_if(jobs.begin(), jobs.end(),
                            [&](const v1::JobStatus& job) {
                              return !access_.Allows(caller, Action::kGetStatus, job.job());
                            }),
             jobs.end());
  return absl::OkStatus();
}

absl::Status AdminService::Drain(RequestCall& call, const v1::DrainRequest& request,
                                 v1::DrainReply& reply) {
  return OnCoordinator(call, Action::kDrain, std::string(kAllJobs), request.server_token(),
                       [&](const std::string&) {
                         drain_();
                         reply.set_jobs(static_cast<uint32_t>(jobs_.All().size()));
                         return absl::OkStatus();
                       });
}

void AdminService::Trace(RequestCall& call, const v1::TraceRequest& request) {
  v1::TraceRequest checked = request;
  const absl::Status permitted =
      Guarded(call, Action::kTrace, request.job(), request.token(), [&](const std::string& token) {
        checked.set_token(token);
        return jobs_.FindFor(request.job(), token).status();
      });
  if (!permitted.ok()) return call.End(permitted);
  tracing_.Trace(call, checked);
}

absl::Status AdminService::StopTrace(RequestCall& call, const v1::StopTraceRequest& request,
                                     v1::StopTraceReply& reply) {
  return Guarded(call, Action::kTrace, request.job(), request.token(),
                 [&](const std::string& token) -> absl::Status {
                   SYNCGRADS_ASSIGN_OR_RETURN(const bool stopped,
                                              tracing_.Stop(request.job(), token));
                   reply.set_stopped(stopped);
                   return absl::OkStatus();
                 });
}

void AdminService::Events(RequestCall& call, const v1::EventsRequest& request) {
  const std::string job = request.job().empty() ? std::string(kAllJobs) : request.job();
  events_.Events(call, request,
                 [this, caller = CallerOf(call.context()), job]() -> absl::StatusOr<bool> {
                   SYNCGRADS_RETURN_IF_ERROR(access_.Check(caller, Action::kEvents, job));
                   return access_.Allows(caller, Action::kEvict, job);
                 });
}

absl::Status AdminService::ReadClock(RequestCall& call, const v1::ReadClockRequest&,
                                     v1::ReadClockReply& reply) {
  reply.set_clock_ns(TraceNow());
  return access_.CheckAnyJob(CallerOf(call.context()), Action::kReadClock);
}

}  // namespace syncgrads::server
