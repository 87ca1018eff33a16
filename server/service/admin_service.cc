#include "server/service/admin_service.h"

#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/contract/contract.h"
#include "common/protocol.h"
#include "server/service/optimizer_stream.h"
#include "server/service/signals.h"
#include "server/service/status.h"

namespace syncgrads::server {
namespace {

grpc::Status Explained(const Jobs& jobs, const v1::ExplainRequest& request,
                       v1::ExplainReply& reply) {
  const std::shared_ptr<Job> job = jobs.Find(request.job());
  if (job == nullptr) {
    return {grpc::StatusCode::NOT_FOUND,
            absl::StrCat("no job \"", request.job(), "\" is open here")};
  }
  if (request.token() != job->token()) {
    return {grpc::StatusCode::PERMISSION_DENIED,
            absl::StrCat("the token is not that of job \"", request.job(), "\"")};
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

grpc::ServerUnaryReactor* AdminService::Checkpoint(grpc::CallbackServerContext* context,
                                                   const v1::CheckpointRequest* request,
                                                   v1::CheckpointReply* reply) {
  absl::StatusOr<uint32_t> asked = NotTheCoordinator();
  if (coordinator_ != nullptr) {
    asked = coordinator_->AskForCheckpoint(request->job(), request->token());
  }
  if (asked.ok()) reply->set_workers(*asked);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(asked.status()));
  return reactor;
}

grpc::ServerWriteReactor<v1::OptimizerChunk>* AdminService::ReadOptimizer(
    grpc::CallbackServerContext*, const v1::ReadOptimizerRequest* request) {
  return SendOptimizer(jobs_, *request);
}

grpc::ServerUnaryReactor* AdminService::GetStatus(grpc::CallbackServerContext* context,
                                                  const v1::GetStatusRequest*,
                                                  v1::GetStatusReply* reply) {
  reply->set_protocol_version(kProtocolVersion);
  reply->set_server_index(ToNumber(self_));
  for (const std::shared_ptr<Job>& job : jobs_.All()) {
    v1::JobStatus& status = *reply->add_jobs();
    status.set_job(job->name());
    status.set_generation(ToNumber(job->generation()));
    if (const std::optional<Epoch> epoch = job->epoch(); epoch.has_value()) {
      *status.mutable_epoch() = syncgrads::ToProto(*epoch);
    }
    if (coordinator_ != nullptr) {
      const CheckpointCount count = coordinator_->checkpoints(job->name());
      v1::CheckpointStatus& checkpoints = *status.mutable_checkpoints();
      checkpoints.set_written(count.written);
      checkpoints.set_failed(count.failed);
      checkpoints.set_last_step(count.last_step);
      checkpoints.set_last_path(count.last_path);
      checkpoints.set_last_error(count.last_error);
    }
    for (const GroupProgress& progress : job->Progress()) {
      v1::GroupStatus& group = *status.add_groups();
      group.set_group(ToNumber(progress.group));
      group.set_name(progress.name);
      group.set_chunks(progress.chunks);
      group.set_open_round(ToNumber(progress.open));
      group.set_late_contributions(progress.late_contributions);
    }
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace syncgrads::server
