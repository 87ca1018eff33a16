#include "server/service/admin_service.h"

#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/contract/round_wait.h"
#include "common/rpc/status.h"
#include "common/secret.h"
#include "common/trace/trace.h"
#include "server/service/optimizer_stream.h"

namespace syncgrads::server {
namespace {

grpc::Status Explained(const Jobs& jobs, const v1::ExplainRequest& request,
                       v1::ExplainReply& reply) {
  const std::shared_ptr<Job> job = jobs.Find(request.job());
  if (job == nullptr) {
    return {grpc::StatusCode::NOT_FOUND,
            absl::StrCat("no job \"", request.job(), "\" is open here")};
  }
  if (!job->HasToken(request.token())) {
    return {grpc::StatusCode::PERMISSION_DENIED,
            absl::StrCat("wrong token for job \"", request.job(), "\"")};
  }
  std::optional<GroupId> group;
  if (request.has_group()) group = GroupId{request.group()};
  for (const RoundWait& wait : job->Explain(group)) *reply.add_waits() = ToProto(wait);
  return grpc::Status::OK;
}

}  // namespace

absl::Status AdminService::NotTheCoordinator() const {
  return absl::FailedPreconditionError(
      absl::StrCat("server ", ToNumber(self_), " is not the coordinator, which is server 0"));
}

grpc::ServerUnaryReactor* AdminService::Explain(grpc::CallbackServerContext* context,
                                                const v1::ExplainRequest* request,
                                                v1::ExplainReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(Explained(jobs_, *request, *reply));
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Evict(grpc::CallbackServerContext* context,
                                              const v1::EvictRequest* request, v1::EvictReply*) {
  absl::Status evicted = NotTheCoordinator();
  if (coordinator_ != nullptr) {
    evicted =
        coordinator_->Evict(request->job(), request->token(), request->worker(), request->reason());
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(evicted));
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Readmit(grpc::CallbackServerContext* context,
                                                const v1::ReadmitRequest* request,
                                                v1::ReadmitReply*) {
  absl::Status readmitted = NotTheCoordinator();
  if (coordinator_ != nullptr) {
    readmitted = coordinator_->Readmit(request->job(), request->token(), request->worker());
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(readmitted));
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Checkpoint(grpc::CallbackServerContext* context,
                                                   const v1::CheckpointRequest* request,
                                                   v1::CheckpointReply* reply) {
  absl::StatusOr<uint32_t> asked = NotTheCoordinator();
  if (coordinator_ != nullptr) {
    asked = coordinator_->RequestCheckpoint(request->job(), request->token());
  }
  if (asked.ok()) reply->set_workers(*asked);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(asked.status()));
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::SetLearningRate(grpc::CallbackServerContext* context,
                                                        const v1::SetLearningRateRequest* request,
                                                        v1::SetLearningRateReply* reply) {
  absl::StatusOr<uint64_t> epoch = NotTheCoordinator();
  if (coordinator_ != nullptr) {
    epoch = coordinator_->SetLearningRate(request->job(), request->token(), request->factor(),
                                          request->by());
  }
  if (epoch.ok()) reply->set_epoch(*epoch);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(epoch.status()));
  return reactor;
}

grpc::ServerWriteReactor<v1::OptimizerChunk>* AdminService::ReadOptimizer(
    grpc::CallbackServerContext*, const v1::ReadOptimizerRequest* request) {
  return SendOptimizer(jobs_, *request);
}

grpc::ServerUnaryReactor* AdminService::GetStatus(grpc::CallbackServerContext* context,
                                                  const v1::GetStatusRequest*,
                                                  v1::GetStatusReply* reply) {
  status_.FillStatus(*reply);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context,
                                              const v1::DrainRequest* request,
                                              v1::DrainReply* reply) {
  absl::Status drained = NotTheCoordinator();
  if (coordinator_ != nullptr) {
    drained = EqualSecrets(request->server_token(), server_token_)
                  ? absl::OkStatus()
                  : absl::PermissionDeniedError("wrong token of the servers (--server_token)");
  }
  if (drained.ok()) {
    drain_();
    reply->set_jobs(static_cast<uint32_t>(jobs_.All().size()));
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(drained));
  return reactor;
}

grpc::ServerWriteReactor<v1::TraceReply>* AdminService::Trace(grpc::CallbackServerContext* context,
                                                              const v1::TraceRequest* request) {
  return tracing_.Trace(context, *request);
}

grpc::ServerWriteReactor<v1::EventsReply>* AdminService::Events(
    grpc::CallbackServerContext* context, const v1::EventsRequest* request) {
  return events_.Events(context, *request);
}

grpc::ServerUnaryReactor* AdminService::ReadClock(grpc::CallbackServerContext* context,
                                                  const v1::ReadClockRequest*,
                                                  v1::ReadClockReply* reply) {
  reply->set_clock_ns(TraceNow());
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace syncgrads::server
