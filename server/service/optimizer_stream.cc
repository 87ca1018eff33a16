#include "server/service/optimizer_stream.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/status.h"
#include "common/status_macros.h"

namespace syncgrads::server {
namespace {

using Results = std::vector<std::shared_ptr<const RoundResult>>;

absl::StatusOr<Results> Hold(const Jobs& jobs, const v1::ReadOptimizerRequest& request) {
  const std::shared_ptr<Job> job = jobs.Find(request.job());
  if (job == nullptr) {
    return absl::NotFoundError(absl::StrCat("no job \"", request.job(), "\" is open here"));
  }
  if (!job->HasToken(request.token())) {
    return absl::PermissionDeniedError(absl::StrCat("wrong token for job \"", request.job(), "\""));
  }
  SYNCGRADS_ASSIGN_OR_RETURN(
      Results results, job->HoldRound(Generation{request.generation()}, GroupId{request.group()},
                                      Round{request.round()}));
  for (const std::shared_ptr<const RoundResult>& result : results) {
    if (!result->slot->updates.empty()) continue;
    return absl::FailedPreconditionError(absl::StrCat("group ", request.group(), " of job \"",
                                                      request.job(),
                                                      "\" has no optimizer on this server"));
  }
  return results;
}

class OptimizerStream : public grpc::ServerWriteReactor<v1::OptimizerChunk> {
 public:
  explicit OptimizerStream(absl::StatusOr<Results> results) {
    if (!results.ok()) {
      Finish(ToGrpc(results.status()));
      return;
    }
    results_ = *std::move(results);
    message_.set_chunks(static_cast<uint32_t>(results_.size()));
    StartWrite(&message_);
  }

 private:
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish({grpc::StatusCode::CANCELLED, "the client has disconnected"});
    if (sent_ == results_.size()) return Finish(grpc::Status::OK);
    message_.Clear();
    const RoundResult& result = *results_[sent_];
    message_.set_chunk(ToNumber(result.chunk));
    message_.mutable_updates()->Assign(result.slot->updates.begin(), result.slot->updates.end());
    for (const AlignedBuffer& slot : result.slot->optimizer) {
      message_.add_slots(slot.data(), result.payload.size());
    }
    // From here on the slot can be written again.
    results_[sent_++] = nullptr;
    StartWrite(&message_);
  }

  void OnDone() override { delete this; }

  Results results_;
  size_t sent_ = 0;
  v1::OptimizerChunk message_;
};

}  // namespace

grpc::ServerWriteReactor<v1::OptimizerChunk>* SendOptimizer(
    const Jobs& jobs, const v1::ReadOptimizerRequest& request) {
  return new OptimizerStream(Hold(jobs, request));
}

}  // namespace syncgrads::server
