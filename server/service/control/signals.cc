#include "server/service/control/signals.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/contract/contract.h"
#include "common/contract/signals.h"
#include "common/names.h"
#include "common/signals/protocol.h"
#include "common/status_macros.h"

namespace syncgrads::server {
namespace {

struct PlanChangeWriter {
  v1::PlanSignal& out;

  void operator()(const JobOpened& opened) const { out.mutable_opened()->set_token(opened.token); }
  void operator()(const std::shared_ptr<const GroupPlan>& plan) const {
    *out.mutable_group() = syncgrads::ToProto(*plan);
  }
  void operator()(const EpochProposed& proposed) const {
    out.mutable_proposal()->set_number(proposed.number);
    out.mutable_proposal()->set_held_for(proposed.held_for);
  }
  void operator()(const Epoch& epoch) const { *out.mutable_epoch() = syncgrads::ToProto(epoch); }
  void operator()(const MemberEnded& ended) const {
    v1::MemberEnded& proto = *out.mutable_ended();
    proto.set_member(ToNumber(ended.member));
    proto.set_group(ToNumber(ended.group));
    proto.set_last_round(ToNumber(ended.last_round));
    proto.set_without_updates(!ended.follows);
  }
  void operator()(const MemberGone& gone) const {
    v1::MemberGone& proto = *out.mutable_gone();
    proto.set_member(ToNumber(gone.member));
    proto.set_incarnation(ToNumber(gone.incarnation));
    proto.set_reason(gone.reason);
    proto.set_graceful(gone.graceful);
    proto.set_evicted(gone.evicted);
    for (const GroupRound& last : gone.last_rounds) {
      *proto.add_last_rounds() = syncgrads::ToProto(last);
    }
  }
  void operator()(const JobClosed& closed) const {
    out.mutable_closed()->set_reason(closed.reason);
    out.mutable_closed()->set_last(closed.last);
    out.mutable_closed()->set_given_up(closed.given_up);
  }
  void operator()(const QuorumSet& set) const {
    v1::QuorumSet& proto = *out.mutable_quorum();
    proto.set_group(ToNumber(set.group));
    proto.set_round(ToNumber(set.round));
    for (MemberId member : set.members) proto.add_members(ToNumber(member));
  }
  void operator()(const StepNorms& norms) const {
    v1::StepNorms& proto = *out.mutable_norms();
    proto.set_group(ToNumber(norms.group));
    proto.set_round(ToNumber(norms.round));
    proto.set_epoch(norms.epoch);
    proto.set_gradient_factor(norms.gradient_factor);
    proto.mutable_ratios()->Assign(norms.ratios.begin(), norms.ratios.end());
  }
};

absl::StatusOr<decltype(PlanChange::kind)> KindOf(const v1::PlanSignal& signal) {
  switch (signal.kind_case()) {
    case v1::PlanSignal::kOpened:
      return JobOpened{signal.opened().token()};
    case v1::PlanSignal::kGroup: {
      SYNCGRADS_ASSIGN_OR_RETURN(GroupPlan plan, syncgrads::FromProto(signal.group()));
      return std::make_shared<const GroupPlan>(std::move(plan));
    }
    case v1::PlanSignal::kProposal:
      return EpochProposed{signal.proposal().number(), signal.proposal().held_for()};
    case v1::PlanSignal::kEpoch:
      return syncgrads::FromProto(signal.epoch());
    case v1::PlanSignal::kEnded:
      return MemberEnded{MemberId{signal.ended().member()}, GroupId{signal.ended().group()},
                         Round{signal.ended().last_round()}, !signal.ended().without_updates()};
    case v1::PlanSignal::kGone:
      return MemberGone{MemberId{signal.gone().member()},
                        Incarnation{signal.gone().incarnation()},
                        signal.gone().reason(),
                        signal.gone().graceful(),
                        syncgrads::FromProto(signal.gone().last_rounds()),
                        signal.gone().evicted()};
    case v1::PlanSignal::kClosed:
      return JobClosed{signal.closed().reason(), signal.closed().last(),
                       signal.closed().given_up()};
    case v1::PlanSignal::kQuorum: {
      QuorumSet set{GroupId{signal.quorum().group()}, Round{signal.quorum().round()}, {}};
      for (uint32_t member : signal.quorum().members()) set.members.push_back(MemberId{member});
      return set;
    }
    case v1::PlanSignal::kNorms:
      return StepNorms{GroupId{signal.norms().group()},
                       Round{signal.norms().round()},
                       signal.norms().epoch(),
                       signal.norms().gradient_factor(),
                       {signal.norms().ratios().begin(), signal.norms().ratios().end()}};
    case v1::PlanSignal::kPrepare:  // is no change; see PreparationFromProto
    case v1::PlanSignal::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat("plan signal ", signal.sequence(),
                                                 " has no kind that protocol version ",
                                                 kProtocolVersion, " defines"));
}

}  // namespace

v1::PlanSignal ToProto(const PlanChange& change) {
  v1::PlanSignal out;
  out.set_sequence(change.sequence);
  out.set_plan(change.plan);
  out.set_job(change.job);
  out.set_generation(ToNumber(change.generation));
  out.set_prepared(change.prepared);
  std::visit(PlanChangeWriter{out}, change.kind);
  return out;
}

absl::StatusOr<PlanChange> FromProto(const v1::PlanSignal& signal) {
  PlanChange change{signal.sequence(), signal.job(),     Generation{signal.generation()}, {},
                    signal.plan(),     signal.prepared()};
  SYNCGRADS_ASSIGN_OR_RETURN(change.kind, KindOf(signal));
  return change;
}

std::vector<v1::Arrived> ToProto(const std::vector<Arrival>& arrivals) {
  std::vector<v1::Arrived> out;
  for (const Arrival& arrival : arrivals) {
    const bool like_last = !out.empty() && out.back().job() == arrival.job &&
                           out.back().generation() == ToNumber(arrival.generation) &&
                           out.back().group() == ToNumber(arrival.group) &&
                           out.back().round() == ToNumber(arrival.round);
    if (!like_last) {
      v1::Arrived& proto = out.emplace_back();
      proto.set_job(arrival.job);
      proto.set_generation(ToNumber(arrival.generation));
      proto.set_group(ToNumber(arrival.group));
      proto.set_round(ToNumber(arrival.round));
    }
    out.back().add_members(ToNumber(arrival.member));
  }
  return out;
}

std::vector<Arrival> FromProto(const v1::Arrived& proto) {
  std::vector<Arrival> arrivals;
  for (uint32_t member : proto.members()) {
    arrivals.push_back({proto.job(), Generation{proto.generation()}, GroupId{proto.group()},
                        Round{proto.round()}, MemberId{member}});
  }
  return arrivals;
}

v1::ServerSignal ToProto(const HeldRounds& held) {
  v1::ServerSignal out;
  v1::OpenRounds& rounds = *out.mutable_open_rounds();
  rounds.set_sequence(held.sequence);
  for (const GroupRound& round : held.rounds) *rounds.add_rounds() = syncgrads::ToProto(round);
  return out;
}

v1::Reduced ToProto(const std::vector<ReducedChunk>& chunks) {
  v1::Reduced out;
  for (const ReducedChunk& chunk : chunks) {
    v1::ReducedChunk& proto = *out.add_chunks();
    proto.set_job(chunk.job);
    proto.set_generation(ToNumber(chunk.generation));
    proto.set_group(ToNumber(chunk.group));
    proto.set_chunk(ToNumber(chunk.chunk));
    proto.set_round(ToNumber(chunk.round));
    proto.set_epoch(chunk.epoch);
    proto.set_stage(static_cast<v1::NormStage>(chunk.stage));
    for (const SquareSums& span : chunk.spans) {
      proto.add_changes(span.change);
      if (chunk.stage == NormStage::kTensors) proto.add_values(span.values);
    }
  }
  return out;
}

absl::StatusOr<std::vector<ReducedChunk>> FromProto(const v1::Reduced& proto) {
  std::vector<ReducedChunk> out;
  for (const v1::ReducedChunk& chunk : proto.chunks()) {
    const bool of_tensors = chunk.stage() == v1::NORMS_OF_TENSORS;
    if (!of_tensors && chunk.stage() != v1::NORM_OF_GRADIENT) {
      return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk.chunk(), " of job \"",
                                                     chunk.job(), "\" has unknown norm stage ",
                                                     chunk.stage()));
    }
    if (of_tensors && chunk.values_size() != chunk.changes_size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "chunk ", chunk.chunk(), " of job \"", chunk.job(), "\" has ", chunk.values_size(),
          " sums of values and ", chunk.changes_size(), " of changes"));
    }
    ReducedChunk& reduced = out.emplace_back();
    reduced.job = chunk.job();
    reduced.generation = Generation{chunk.generation()};
    reduced.group = GroupId{chunk.group()};
    reduced.chunk = ChunkId{chunk.chunk()};
    reduced.round = Round{chunk.round()};
    reduced.epoch = chunk.epoch();
    reduced.stage = static_cast<NormStage>(chunk.stage());
    for (int s = 0; s < chunk.changes_size(); ++s) {
      reduced.spans.push_back({of_tensors ? chunk.values(s) : 0, chunk.changes(s)});
    }
  }
  return out;
}

v1::PlanSignal ToProto(const GroupPreparation& preparation) {
  v1::PlanSignal out;
  out.set_job(preparation.job);
  out.set_generation(ToNumber(preparation.generation));
  v1::GroupPreparation& proto = *out.mutable_prepare();
  proto.set_key(preparation.key);
  if (preparation.plan != nullptr) *proto.mutable_plan() = syncgrads::ToProto(*preparation.plan);
  return out;
}

absl::StatusOr<GroupPreparation> PreparationFromProto(const v1::PlanSignal& signal) {
  GroupPreparation out{signal.job(), Generation{signal.generation()}, signal.prepare().key(),
                       nullptr};
  if (signal.prepare().has_plan()) {
    SYNCGRADS_ASSIGN_OR_RETURN(GroupPlan plan, syncgrads::FromProto(signal.prepare().plan()));
    out.plan = std::make_shared<const GroupPlan>(std::move(plan));
  }
  return out;
}

v1::ServerSignal ToProto(const GroupPrepared& prepared) {
  v1::ServerSignal out;
  v1::GroupPrepared& proto = *out.mutable_prepared();
  proto.set_job(prepared.job);
  proto.set_generation(ToNumber(prepared.generation));
  proto.set_key(prepared.key);
  proto.set_made(prepared.made);
  proto.set_wanted(prepared.wanted);
  proto.set_done(prepared.done);
  if (!prepared.error.ok()) *proto.mutable_error() = syncgrads::ToProto(prepared.error);
  return out;
}

namespace {

// An error of another server, whose text goes to workers and into the log.
absl::Status ErrorOfServer(const v1::Error& proto) {
  const absl::Status error = syncgrads::FromProto(proto);
  return {error.code(), Printable(error.message())};
}

}  // namespace

GroupPrepared FromProto(const v1::GroupPrepared& proto) {
  return {proto.job(),
          Generation{proto.generation()},
          proto.key(),
          proto.made(),
          proto.wanted(),
          proto.done(),
          proto.has_error() ? ErrorOfServer(proto.error()) : absl::OkStatus()};
}

v1::ServerSignal ToProto(const StoreFailure& failure) {
  v1::ServerSignal out;
  v1::StoreFailure& proto = *out.mutable_store_failure();
  proto.set_job(failure.job);
  proto.set_generation(ToNumber(failure.generation));
  *proto.mutable_error() = syncgrads::ToProto(failure.error);
  return out;
}

StoreFailure FromProto(const v1::StoreFailure& proto) {
  return {proto.job(), Generation{proto.generation()}, ErrorOfServer(proto.error())};
}

namespace {

// Passes one signal of a member to the coordinator.
struct MemberSignalReader {
  const Coordinator::MemberKey& member;
  Coordinator& coordinator;

  absl::Status operator()(const Hello&) const {
    return absl::InvalidArgumentError("a hello that is not the first signal of its stream");
  }
  absl::Status operator()(Heartbeat&& heartbeat) const {
    coordinator.Heartbeat(member, std::move(heartbeat));
    return absl::OkStatus();
  }
  absl::Status operator()(const RegisterGroup& group) const {
    coordinator.Register(member, group.request, group.spec, group.link_rate);
    return absl::OkStatus();
  }
  absl::Status operator()(const EndGroup& end) const {
    coordinator.End(member, end.request, end.group, end.last_round, !end.without_updates);
    return absl::OkStatus();
  }
  absl::Status operator()(Leave&& leave) const {
    coordinator.Leave(member, leave.request, std::move(leave.last_rounds));
    return absl::OkStatus();
  }
  absl::Status operator()(const Ready& ready) const {
    coordinator.Ready(member, ready.request, ready.group);
    return absl::OkStatus();
  }
  absl::Status operator()(const SetLearningRate& rate) const {
    coordinator.SetLearningRate(member, rate.request, rate.factor);
    return absl::OkStatus();
  }
  absl::Status operator()(const CheckpointReport& report) const {
    coordinator.Checkpointed(member, report);
    return absl::OkStatus();
  }
};

}  // namespace

absl::Status Dispatch(const v1::WorkerSignal& signal, const Coordinator::MemberKey& member,
                      Coordinator& coordinator) {
  absl::StatusOr<WorkerSignal> converted = syncgrads::FromProto(signal);
  if (converted.ok()) {
    return std::visit(MemberSignalReader{member, coordinator}, *std::move(converted));
  }
  if (!signal.has_register_group()) return converted.status();
  // A bad description of a group costs this request, and not the membership.
  coordinator.Refuse(member, signal.register_group().request(), converted.status());
  return absl::OkStatus();
}

absl::Status Dispatch(const v1::ServerSignal& signal, ServerIndex server, const ServerLink* link,
                      Coordinator& coordinator) {
  if (signal.has_available_bytes()) coordinator.HasRoom(server, link, signal.available_bytes());
  switch (signal.kind_case()) {
    case v1::ServerSignal::kHello:
      return absl::OkStatus();
    case v1::ServerSignal::kApplied:
      coordinator.Applied(server, link, signal.applied());
      return absl::OkStatus();
    case v1::ServerSignal::kOpenRounds:
      coordinator.OpenRounds(server, signal.open_rounds().sequence(),
                             syncgrads::FromProto(signal.open_rounds().rounds()));
      return absl::OkStatus();
    case v1::ServerSignal::kArrived:
      coordinator.Arrived(server, FromProto(signal.arrived()));
      return absl::OkStatus();
    case v1::ServerSignal::kReduced: {
      SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<ReducedChunk> chunks,
                                 FromProto(signal.reduced()));
      coordinator.Reduced(server, chunks);
      return absl::OkStatus();
    }
    case v1::ServerSignal::kPrepared:
      coordinator.Prepared(server, FromProto(signal.prepared()));
      return absl::OkStatus();
    case v1::ServerSignal::kStoreFailure:
      coordinator.StoreFailed(server, FromProto(signal.store_failure()));
      return absl::OkStatus();
    case v1::ServerSignal::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a signal has no kind that protocol version ", kProtocolVersion, " defines"));
}

}  // namespace syncgrads::server
