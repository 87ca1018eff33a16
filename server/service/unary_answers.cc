#include "server/service/unary_answers.h"

#include <grpcpp/server_context.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/net/address.h"
#include "common/rpc/status.h"
#include "server/service/cancellable_call.h"

namespace syncgrads::server {

// One call. It has a shared pointer to itself until gRPC has called OnDone.
class UnaryAnswers::Call : public grpc::ServerUnaryReactor, public TimedStream {
 public:
  Call(UnaryAnswers& answers, grpc::CallbackServerContext* context, std::string network)
      : answers_(answers), call_(context), network_(std::move(network)) {}

  // To be called once, before the reactor is returned to gRPC.
  void Start(std::shared_ptr<Call> self, const absl::Status& status) {
    self_ = std::move(self);
    deadline_ = answers_.deadlines_.Add(self_);
    Finish(ToGrpc(status));
  }

 private:
  void OnTimeout(absl::Duration time) override {
    call_.Cancel({grpc::StatusCode::DEADLINE_EXCEEDED,
                  absl::StrCat("the answer was not read within ", absl::FormatDuration(time))});
  }
  void OnDone() override {
    call_.Done();
    answers_.deadlines_.Remove(this, deadline_);
    answers_.Ended(network_);
    self_.reset();
  }

  UnaryAnswers& answers_;
  CancellableCall call_;
  const std::string network_;
  std::shared_ptr<Call> self_;
  absl::Time deadline_;
};

grpc::ServerUnaryReactor* UnaryAnswers::Answer(grpc::CallbackServerContext* context,
                                               const std::string& peer,
                                               absl::FunctionRef<absl::Status()> fill) {
  std::string network = NetworkOf(peer);
  const absl::Status begun = Begin(network);
  if (!begun.ok()) {
    grpc::ServerUnaryReactor* const refused = context->DefaultReactor();
    refused->Finish(ToGrpc(begun));
    return refused;
  }
  auto call = std::make_shared<Call>(*this, context, std::move(network));
  call->Start(call, fill());
  return call.get();
}

absl::Status UnaryAnswers::Begin(const std::string& network) {
  MutexLock lock(mutex_);
  const auto refused = [](size_t calls, absl::string_view whose, size_t most) {
    return absl::ResourceExhaustedError(absl::StrCat(calls, " answers", whose,
                                                     " have not been read yet, of at most ", most,
                                                     ": retry when one has been read"));
  };
  if (calls_ >= kMaxAnswers) return refused(calls_, "", kMaxAnswers);
  if (const size_t calls = calls_of_network_.Of(network); calls >= kMaxAnswersOfNetwork) {
    return refused(calls, absl::StrCat(" to ", network), kMaxAnswersOfNetwork);
  }
  ++calls_;
  calls_of_network_.Up(network);
  return absl::OkStatus();
}

void UnaryAnswers::Ended(const std::string& network) {
  MutexLock lock(mutex_);
  --calls_;
  calls_of_network_.Down(network);
}

}  // namespace syncgrads::server
