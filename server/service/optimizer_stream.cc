#include "server/service/optimizer_stream.h"

#include <grpcpp/server_context.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/net/address.h"
#include "common/rpc/status.h"
#include "common/status_macros.h"
#include "server/access/caller.h"
#include "server/service/cancellable_call.h"
#include "server/service/refused_stream.h"

namespace syncgrads::server {
namespace {

using Results = std::vector<std::shared_ptr<const RoundResult>>;

absl::StatusOr<Results> Hold(const Jobs& jobs, const v1::ReadOptimizerRequest& request) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::shared_ptr<Job> job,
                             jobs.FindFor(request.job(), request.token()));
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

}  // namespace

// One call. It has a shared pointer to itself until gRPC has called OnDone. gRPC calls the methods
// On… one at a time, except for OnTimeout, which the thread of StreamDeadlines calls.
class OptimizerStreams::Stream : public grpc::ServerWriteReactor<v1::OptimizerChunk>,
                                 public TimedStream,
                                 public std::enable_shared_from_this<Stream> {
 public:
  Stream(OptimizerStreams& streams, grpc::CallbackServerContext* context, std::string network,
         std::string job)
      : streams_(streams), call_(context), network_(std::move(network)), job_(std::move(job)) {}

  // To be called once, before the reactor is returned to gRPC.
  void Start(absl::StatusOr<Results> results) {
    self_ = shared_from_this();
    RenewDeadline();
    if (!results.ok()) {
      Finish(ToGrpc(results.status()));
      return;
    }
    results_ = *std::move(results);
    message_.set_chunks(static_cast<uint32_t>(results_.size()));
    StartWrite(&message_);
  }

 private:
  // The caller has the full time again.
  void RenewDeadline() {
    streams_.deadlines_.Remove(this, deadline_);
    deadline_ = streams_.deadlines_.Add(shared_from_this());
  }

  void OnWriteDone(bool ok) override {
    RenewDeadline();
    if (!ok) {
      results_.clear();
      return Finish({grpc::StatusCode::CANCELLED, "the client has disconnected"});
    }
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

  void OnTimeout(absl::Duration time) override {
    call_.Cancel({grpc::StatusCode::DEADLINE_EXCEEDED,
                  absl::StrCat("a message was not read within ", absl::FormatDuration(time))});
  }
  void OnDone() override {
    call_.Done();
    streams_.deadlines_.Remove(this, deadline_);
    streams_.Ended(network_, job_);
    self_.reset();
  }

  OptimizerStreams& streams_;
  CancellableCall call_;
  const std::string network_;
  const std::string job_;
  std::shared_ptr<Stream> self_;
  Results results_;
  size_t sent_ = 0;
  v1::OptimizerChunk message_;
  // The deadline that was registered last.
  absl::Time deadline_ = absl::InfiniteFuture();
};

grpc::ServerWriteReactor<v1::OptimizerChunk>* OptimizerStreams::Read(
    grpc::CallbackServerContext* context, const v1::ReadOptimizerRequest& request) {
  std::string network = NetworkOf(CallerOf(*context).peer);
  const absl::Status begun = Begin(network, request.job());
  if (!begun.ok()) return new RefusedStream<v1::OptimizerChunk>(begun);
  auto stream = std::make_shared<Stream>(*this, context, std::move(network), request.job());
  stream->Start(Hold(jobs_, request));
  return stream.get();
}

absl::Status OptimizerStreams::Begin(const std::string& network, const std::string& job) {
  MutexLock lock(mutex_);
  const auto refused = [](absl::string_view what, size_t streams, absl::string_view whose,
                          size_t most) {
    return absl::ResourceExhaustedError(absl::StrCat("this server already sends ", what, " to ",
                                                     streams, " callers", whose, ", of at most ",
                                                     most, ": retry when one of them has ended"));
  };
  if (streams_ >= kMaxStreams) return refused("optimizers' states", streams_, "", kMaxStreams);
  if (const size_t streams = streams_of_network_.Of(network); streams >= kMaxStreamsOfNetwork) {
    return refused("optimizers' states", streams, absl::StrCat(" of ", network),
                   kMaxStreamsOfNetwork);
  }
  if (const size_t streams = streams_of_job_.Of(job); streams >= kMaxStreamsOfJob) {
    return refused(absl::StrCat("the optimizer's state of job \"", job, "\""), streams, "",
                   kMaxStreamsOfJob);
  }
  ++streams_;
  streams_of_network_.Up(network);
  streams_of_job_.Up(job);
  return absl::OkStatus();
}

void OptimizerStreams::Ended(const std::string& network, const std::string& job) {
  MutexLock lock(mutex_);
  --streams_;
  streams_of_network_.Down(network);
  streams_of_job_.Down(job);
}

}  // namespace syncgrads::server
