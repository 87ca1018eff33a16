#include "tests/sim/sim_ends.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/contract/signals.h"
#include "common/wire/frame.h"
#include "server/service/control/signals.h"
#include "tests/sim/sim_server.h"

namespace syncgrads::sim {

void ExchangeEnd::Send(std::shared_ptr<const server::RoundResult> result, bool with_payload) {
  server_.Touch();
  const bool whole = with_payload && !result->payload.empty();
  checker_.OnResult(hello_.member, *result, whole);
  server_.OnSent(*result);
  Pieces payload;
  if (whole) payload.push_back(result->payload);
  stream_->Send(
      std::make_shared<Frame>(whole ? result->header : result->bare_header, payload, result));
  server_.Touch();
}

void ExchangeEnd::OnMessage(Freight& message) {
  auto& frame = static_cast<Frame&>(message);
  auto bytes = std::make_shared<std::string>(frame.Bytes());
  if (*bytes != frame.at_first()) {
    return world_.Fail("a contribution was overwritten on its way to a server");
  }
  absl::StatusOr<PushFrame> push = DecodePush({SpanOf(*bytes)});
  if (!push.ok()) return world_.Fail("a push that cannot be read");
  if (push->header.hello.has_value()) return OnHello(*push->header.hello);
  if (job_ == nullptr) return;  // the hello was refused
  if (push->header.member != hello_.member || push->header.incarnation != hello_.incarnation) {
    return world_.Fail("a push on another member's stream");
  }
  checker_.OnPushDelivered(ServerIndex{server_.index()}, jobs_.applied(), push->header);
  job_->Push(push->header, {std::move(push->payload), bytes}, shared_from_this());
}

void ExchangeEnd::OnHello(const DataHello& hello) {
  std::shared_ptr<server::Job> job = jobs_.Find(hello.job);
  if (job == nullptr) {
    return stream_->Finish(
        absl::UnavailableError(absl::StrCat("no job \"", hello.job, "\" is open here")));
  }
  const auto presence = job->Admit(hello);
  if (!presence.ok()) return stream_->Finish(presence.status());
  hello_ = hello;
  job_ = std::move(job);
}

void JoinEnd::Send(Generation generation, const JobSignal::Kind& signal) {
  server_.Touch();
  stream_->Send(std::make_shared<Signal<v1::JobSignal>>(ToProto(generation, signal)));
  if (const auto* expelled = std::get_if<Expelled>(&signal)) {
    stream_->Finish(expelled->reason);
  } else if (std::holds_alternative<Farewell>(signal)) {
    stream_->Finish(absl::OkStatus());
  }
}

void JoinEnd::OnMessage(Freight& message) {
  const v1::WorkerSignal& signal = static_cast<Signal<v1::WorkerSignal>&>(message).message;
  if (signal.has_hello()) return OnHello(signal.hello());
  if (!member_.has_value()) return;  // the hello was refused
  const absl::Status dispatched = server::Dispatch(signal, *member_, coordinator_);
  if (!dispatched.ok()) {
    server_.world().Fail(absl::StrCat("a signal of a worker is refused: ", dispatched.message()));
  }
}

void JoinEnd::OnHello(const v1::Hello& hello) {
  absl::StatusOr<server::Coordinator::MemberKey> member =
      coordinator_.Admit(FromProto(hello), shared_from_this());
  if (!member.ok()) return stream_->Finish(member.status());
  member_ = *std::move(member);
}

void JoinEnd::OnOver() {
  if (member_.has_value()) coordinator_.LinkBroken(*member_, this);
}

void FollowEnd::Send(const server::PlanChange& change) {
  server_.Touch();
  checker_.OnTold(change);
  stream_->Send(std::make_shared<Signal<v1::PlanSignal>>(server::ToProto(change)));
}

void FollowEnd::Prepare(const server::GroupPreparation& preparation) {
  server_.Touch();
  stream_->Send(std::make_shared<Signal<v1::PlanSignal>>(server::ToProto(preparation)));
}

void FollowEnd::OnMessage(Freight& freight) {
  const v1::ServerSignal& signal = static_cast<Signal<v1::ServerSignal>&>(freight).message;
  if (signal.has_hello()) OnHello(signal.hello());
  if (!server_index_.has_value()) return;  // the hello was refused
  const absl::Status dispatched = server::Dispatch(signal, *server_index_, this, coordinator_);
  if (!dispatched.ok()) {
    server_.world().Fail(absl::StrCat("a signal of a server is refused: ", dispatched.message()));
  }
}

void FollowEnd::OnHello(const v1::ServerHello& hello) {
  const server::ServerIdentity identity = {ServerIndex{hello.index()}, hello.address(),
                                           Incarnation{hello.incarnation()}, hello.applied(),
                                           hello.plan()};
  const absl::Status attached = coordinator_.AttachServer(identity, shared_from_this());
  if (!attached.ok()) return stream_->Finish(attached);
  server_index_ = identity.index;
}

void FollowEnd::OnOver() {
  if (server_index_.has_value()) coordinator_.DetachServer(*server_index_, this);
}

}  // namespace syncgrads::sim
