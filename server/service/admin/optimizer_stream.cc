#include "server/service/admin/optimizer_stream.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/net/address.h"
#include "common/status_macros.h"
#include "server/access/caller.h"

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

// One call, which owns it. gRPC calls the methods On… one at a time, except for OnTimeout, which
// the thread of StreamDeadlines calls.
class OptimizerStreams::Stream : public RequestCall::Events,
                                 public TimedStream,
                                 public std::enable_shared_from_this<Stream> {
 public:
  Stream(OptimizerStreams& streams, RequestCall& call, std::string network, std::string job)
      : streams_(streams),
        call_(call.shared_from_this()),
        network_(std::move(network)),
        job_(std::move(job)) {}

  // To be called once.
  void Start(absl::StatusOr<Results> results) {
    call_->SetEvents(shared_from_this());
    RenewDeadline();
    if (!results.ok()) return call_->End(results.status());
    results_ = *std::move(results);
    v1::OptimizerChunk first;
    first.set_chunks(static_cast<uint32_t>(results_.size()));
    call_->Write(first);
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
      return call_->End(absl::CancelledError("the client has disconnected"));
    }
    if (sent_ == results_.size()) return call_->End(absl::OkStatus());
    v1::OptimizerChunk message;
    const RoundResult& result = *results_[sent_];
    message.set_chunk(ToNumber(result.chunk));
    message.mutable_updates()->Assign(result.slot->updates.begin(), result.slot->updates.end());
    for (const AlignedBuffer& slot : result.slot->optimizer) {
      message.add_slots(slot.data(), result.payload.size());
    }
    // From here on the slot can be written again.
    results_[sent_++] = nullptr;
    call_->Write(message);
  }

  void OnTimeout(absl::Duration time) override {
    call_->Cancel({grpc::StatusCode::DEADLINE_EXCEEDED,
                   absl::StrCat("a message was not read within ", absl::FormatDuration(time))});
  }
  void OnDone() override {
    streams_.deadlines_.Remove(this, deadline_);
    streams_.Ended(network_, job_);
  }

  OptimizerStreams& streams_;
  const std::shared_ptr<RequestCall> call_;
  const std::string network_;
  const std::string job_;
  Results results_;
  size_t sent_ = 0;
  // The deadline that was registered last.
  absl::Time deadline_ = absl::InfiniteFuture();
};

void OptimizerStreams::Read(RequestCall& call, const v1::ReadOptimizerRequest& request) {
  std::string network = NetworkOf(CallerOf(call.context()).peer);
  const absl::Status begun = Begin(network, request.job());
  if (!begun.ok()) return call.End(begun);
  std::make_shared<Stream>(*this, call, std::move(network), request.job())
      ->Start(Hold(jobs_, request));
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
