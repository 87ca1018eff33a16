#include "server/service/admin_service.h"

#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/contract/contract.h"
#include "common/protocol.h"
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

grpc::ServerUnaryReactor* AdminService::Explain(grpc::CallbackServerContext* context,
                                                const v1::ExplainRequest* request,
                                                v1::ExplainReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(Explained(jobs_, *request, *reply));
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::Evict(grpc::CallbackServerContext* context,
                                              const v1::EvictRequest* request, v1::EvictReply*) {
  absl::Status evicted = absl::FailedPreconditionError(
      absl::StrCat("server ", ToNumber(self_), " is not the coordinator, which is server 0"));
  if (coordinator_ != nullptr) {
    evicted =
        coordinator_->Evict(request->job(), request->token(), request->worker(), request->reason());
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(evicted));
  return reactor;
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
    for (const GroupProgress& progress : job->Progress()) {
      v1::GroupStatus& group = *status.add_groups();
      group.set_group(ToNumber(progress.group));
      group.set_name(progress.name);
      group.set_chunks(progress.chunks);
      group.set_open_round(ToNumber(progress.open));
    }
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace syncgrads::server
