#include "tests/sim/sim_ends.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/contract/contract.h"
#include "common/wire/frame.h"
#include "server/service/signals.h"
#include "tests/sim/sim_server.h"

namespace syncgrads::sim {

void ExchangeEnd::Send(std::shared_ptr<const server::RoundResult> result, bool with_payload) {
  server_.Touch();
  const bool whole = with_payload && !result->payload.empty();
  checker_.OnResult(*result, whole);
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
  checker_.OnPushDelivered(ServerIndex{server_.index()}, push->header);
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

void JoinEnd::Send(Generation generation, const server::JobSignal& signal) {
  server_.Touch();
  stream_->Send(std::make_shared<Signal<v1::JobSignal>>(server::ToProto(generation, signal)));
  if (const auto* expelled = std::get_if<server::Expelled>(&signal)) {
    stream_->Finish(expelled->reason);
  } else if (std::holds_alternative<server::Farewell>(signal)) {
    stream_->Finish(absl::OkStatus());
  }
}

void JoinEnd::OnMessage(Freight& message) {
  OnSignal(static_cast<Signal<v1::WorkerSignal>&>(message).message);
}

void JoinEnd::OnSignal(const v1::WorkerSignal& signal) {
  if (signal.has_hello()) {
    absl::StatusOr<server::Coordinator::MemberKey> member =
        coordinator_.Admit(server::FromProto(signal.hello()), shared_from_this());
    if (!member.ok()) return stream_->Finish(member.status());
    member_ = *std::move(member);
    return;
  }
  if (!member_.has_value()) return;
  switch (signal.kind_case()) {
    case v1::WorkerSignal::kHeartbeat:
      return coordinator_.Heartbeat(*member_,
                                    server::RoundsFromProto(signal.heartbeat().progress()));
    case v1::WorkerSignal::kReady:
      return coordinator_.Ready(*member_, signal.ready().request(),
                                GroupId{signal.ready().group()});
    case v1::WorkerSignal::kRegisterGroup: {
      const v1::RegisterGroup& request = signal.register_group();
      const absl::StatusOr<GroupSpec> spec = syncgrads::FromProto(request.spec());
      if (spec.ok()) return coordinator_.Register(*member_, request.request(), *spec);
      return coordinator_.Refuse(*member_, request.request(), spec.status());
    }
    case v1::WorkerSignal::kEndGroup: {
      const v1::EndGroup& end = signal.end_group();
      return coordinator_.End(*member_, end.request(), GroupId{end.group()},
                              Round{end.last_round()}, !end.without_updates());
    }
    case v1::WorkerSignal::kLeave:
      return coordinator_.Leave(*member_, signal.leave().request(),
                                server::RoundsFromProto(signal.leave().last_rounds()));
    default:
      return;
  }
}

void JoinEnd::OnOver() {
  if (member_.has_value()) coordinator_.LinkBroken(*member_, this);
}

void FollowEnd::Send(const server::PlanChange& change) {
  server_.Touch();
  stream_->Send(std::make_shared<Signal<v1::PlanSignal>>(server::ToProto(change)));
}

void FollowEnd::OnMessage(Freight& freight) {
  const FollowMessage& message = static_cast<Signal<FollowMessage>&>(freight).message;
  if (message.hello.has_value()) {
    const absl::Status attached = coordinator_.AttachServer(*message.hello, shared_from_this());
    if (!attached.ok()) return stream_->Finish(attached);
    index_ = message.hello->index;
  } else if (!index_.has_value()) {
    return;
  } else if (message.open_rounds.has_value()) {
    coordinator_.OpenRounds(*index_, message.open_rounds->sequence, message.open_rounds->rounds);
  } else if (!message.arrived.empty()) {
    coordinator_.Arrived(*index_, message.arrived);
  } else {
    coordinator_.Applied(*index_, this, message.applied);
  }
}

void FollowEnd::OnOver() {
  if (index_.has_value()) coordinator_.DetachServer(*index_, this);
}

}  // namespace syncgrads::sim
