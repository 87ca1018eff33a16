#include "client/psctl/admin.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/grpc/grpc_channel.h"
#include "common/rpc/status.h"

namespace syncgrads::client {

Admin::Admin(Options options)
    : options_(std::move(options)), stub_(v1::Admin::NewStub(NewChannel(options_.server))) {}

template <typename Request, typename Reply, typename Method>
absl::StatusOr<Reply> Admin::Call(Method method, const Request& request) {
  grpc::ClientContext context;
  context.set_wait_for_ready(options_.wait_for_connection);
  context.set_deadline(absl::ToChronoTime(absl::Now() + options_.timeout));
  Reply reply;
  const absl::Status called = FromGrpc((stub_.get()->*method)(&context, request, &reply));
  if (called.ok()) return reply;
  return absl::Status(called.code(),
                      absl::StrCat("server at ", options_.server, ": ", called.message()));
}

absl::StatusOr<v1::GetStatusReply> Admin::GetStatus() {
  return Call<v1::GetStatusRequest, v1::GetStatusReply>(&v1::Admin::Stub::GetStatus, {});
}

absl::StatusOr<v1::ExplainReply> Admin::Explain() {
  v1::ExplainRequest request;
  request.set_job(options_.job);
  request.set_token(options_.token);
  return Call<v1::ExplainRequest, v1::ExplainReply>(&v1::Admin::Stub::Explain, request);
}

absl::StatusOr<uint32_t> Admin::RequestCheckpoint() {
  v1::CheckpointRequest request;
  request.set_job(options_.job);
  request.set_token(options_.token);
  const auto reply =
      Call<v1::CheckpointRequest, v1::CheckpointReply>(&v1::Admin::Stub::Checkpoint, request);
  if (!reply.ok()) return reply.status();
  return reply->workers();
}

absl::Status Admin::Evict(const std::string& worker, const std::string& reason) {
  v1::EvictRequest request;
  request.set_job(options_.job);
  request.set_token(options_.token);
  request.set_worker(worker);
  request.set_reason(reason);
  return Call<v1::EvictRequest, v1::EvictReply>(&v1::Admin::Stub::Evict, request).status();
}

absl::Status Admin::Readmit(const std::string& worker) {
  v1::ReadmitRequest request;
  request.set_job(options_.job);
  request.set_token(options_.token);
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

}  // namespace syncgrads::client
