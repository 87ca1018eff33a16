#include "server/service/signals.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/contract/contract.h"
#include "common/protocol.h"
#include "common/status_macros.h"

namespace syncgrads::server {
namespace {

struct JobSignalWriter {
  v1::JobSignal& out;

  void operator()(const Welcome& welcome) const {
    v1::Welcome& proto = *out.mutable_welcome();
    proto.set_protocol_version(kProtocolVersion);
    proto.set_member(ToNumber(welcome.member));
    proto.set_name(welcome.name);
    proto.mutable_servers()->Assign(welcome.servers.begin(), welcome.servers.end());
    proto.set_heartbeat_interval_ms(absl::ToInt64Milliseconds(welcome.heartbeat_interval));
    proto.set_lease_ms(absl::ToInt64Milliseconds(welcome.lease));
    proto.set_stream_grace_ms(absl::ToInt64Milliseconds(welcome.stream_grace));
  }
  void operator()(const Epoch& epoch) const { *out.mutable_epoch() = syncgrads::ToProto(epoch); }
  void operator()(const Registered& registered) const {
    out.mutable_registered()->set_request(registered.request);
    *out.mutable_registered()->mutable_plan() = syncgrads::ToProto(*registered.plan);
  }
  void operator()(const Done& done) const { out.mutable_done()->set_request(done.request); }
  void operator()(const Refused& refused) const {
    out.mutable_refused()->set_request(refused.request);
    *out.mutable_refused()->mutable_error() = syncgrads::ToProto(refused.error);
  }
  void operator()(const Waiting& waiting) const {
    out.mutable_waiting()->set_reason(waiting.reason);
  }
  void operator()(const Expelled& expelled) const {
    *out.mutable_expelled() = syncgrads::ToProto(expelled.reason);
  }
  void operator()(const CheckpointAsked&) const { out.mutable_checkpoint_asked(); }
  void operator()(const Farewell& farewell) const {
    out.mutable_done()->set_request(farewell.request);
  }
};

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
    proto.set_in_order(gone.in_order);
    for (const GroupRound& last : gone.last_rounds) {
      *proto.add_last_rounds() = syncgrads::ToProto(last);
    }
  }
  void operator()(const JobClosed& closed) const {
    out.mutable_closed()->set_reason(closed.reason);
    out.mutable_closed()->set_last(closed.last);
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
      return MemberGone{MemberId{signal.gone().member()}, Incarnation{signal.gone().incarnation()},
                        signal.gone().reason(), signal.gone().in_order(),
                        RoundsFromProto(signal.gone().last_rounds())};
    case v1::PlanSignal::kClosed:
      return JobClosed{signal.closed().reason(), signal.closed().last()};
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
    case v1::PlanSignal::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat("plan signal ", signal.sequence(),
                                                 " is of no kind that protocol version ",
                                                 kProtocolVersion, " knows"));
}

}  // namespace

v1::JobSignal ToProto(Generation generation, const JobSignal& signal) {
  v1::JobSignal out;
  out.set_generation(ToNumber(generation));
  std::visit(JobSignalWriter{out}, signal);
  return out;
}

Introduction FromProto(const v1::Hello& hello) {
  Introduction introduction;
  introduction.protocol_version = hello.protocol_version();
  introduction.job = hello.job();
  introduction.token = hello.token();
  introduction.name = hello.name();
  introduction.incarnation = Incarnation{hello.incarnation()};
  if (hello.has_rank()) introduction.rank = hello.rank();
  introduction.world_size = hello.world_size();
  introduction.host = hello.host();
  introduction.generation = Generation{hello.generation()};
  introduction.only_running = hello.only_running();
  introduction.max_workers = hello.max_workers();
  introduction.min_workers = hello.min_workers();
  introduction.step_timeout = absl::Milliseconds(hello.step_timeout_ms());
  return introduction;
}

v1::Hello ToProto(const Introduction& introduction) {
  v1::Hello hello;
  hello.set_protocol_version(introduction.protocol_version);
  hello.set_job(introduction.job);
  hello.set_token(introduction.token);
  hello.set_name(introduction.name);
  hello.set_incarnation(ToNumber(introduction.incarnation));
  if (introduction.rank.has_value()) hello.set_rank(*introduction.rank);
  hello.set_world_size(introduction.world_size);
  hello.set_host(introduction.host);
  hello.set_generation(ToNumber(introduction.generation));
  hello.set_only_running(introduction.only_running);
  hello.set_max_workers(introduction.max_workers);
  hello.set_min_workers(introduction.min_workers);
  hello.set_step_timeout_ms(absl::ToInt64Milliseconds(introduction.step_timeout));
  return hello;
}

v1::PlanSignal ToProto(const PlanChange& change) {
  v1::PlanSignal out;
  out.set_sequence(change.sequence);
  out.set_plan(change.plan);
  out.set_job(change.job);
  out.set_generation(ToNumber(change.generation));
  std::visit(PlanChangeWriter{out}, change.kind);
  return out;
}

absl::StatusOr<PlanChange> FromProto(const v1::PlanSignal& signal) {
  PlanChange change{
      signal.sequence(), signal.job(), Generation{signal.generation()}, {}, signal.plan()};
  SYNCGRADS_ASSIGN_OR_RETURN(change.kind, KindOf(signal));
  return change;
}

std::vector<GroupRound> RoundsFromProto(
    const google::protobuf::RepeatedPtrField<v1::GroupRound>& rounds) {
  std::vector<GroupRound> out;
  for (const v1::GroupRound& round : rounds) out.push_back(syncgrads::FromProto(round));
  return out;
}

CheckpointReport FromProto(const v1::CheckpointReport& report) {
  CheckpointReport out{report.step(), report.path()};
  if (report.has_error()) out.path = syncgrads::FromProto(report.error());
  return out;
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
                                                     chunk.job(), "\" is in norm stage ",
                                                     chunk.stage(), ", which is unknown here"));
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

v1::RoundWait ToProto(const RoundWait& wait) {
  v1::RoundWait out;
  out.set_group(ToNumber(wait.group));
  out.set_group_name(wait.group_name);
  out.set_round(ToNumber(wait.round));
  out.set_open_chunks(wait.open_chunks);
  out.mutable_tensors()->Assign(wait.tensors.begin(), wait.tensors.end());
  out.set_tensor_count(wait.tensor_count);
  for (const RoundWait::Missing& missing : wait.missing) {
    v1::MissingMember& member = *out.add_missing();
    member.set_member(ToNumber(missing.member));
    member.set_name(missing.name);
    member.set_silent_ms(absl::ToInt64Milliseconds(missing.silent));
  }
  out.set_open_ms(absl::ToInt64Milliseconds(wait.open_for));
  out.set_text(ToString(wait));
  out.set_held_for(wait.held_for);
  return out;
}

namespace {

absl::Status UnknownKind() {
  return absl::InvalidArgumentError(
      absl::StrCat("a signal of no kind that protocol version ", kProtocolVersion, " knows"));
}

}  // namespace

absl::Status Hear(const v1::WorkerSignal& signal, const Coordinator::MemberKey& member,
                  Coordinator& coordinator) {
  switch (signal.kind_case()) {
    case v1::WorkerSignal::kHeartbeat:
      coordinator.Heartbeat(member, RoundsFromProto(signal.heartbeat().progress()));
      return absl::OkStatus();
    case v1::WorkerSignal::kReady:
      coordinator.Ready(member, signal.ready().request(), GroupId{signal.ready().group()});
      return absl::OkStatus();
    case v1::WorkerSignal::kRegisterGroup: {
      const v1::RegisterGroup& request = signal.register_group();
      const absl::StatusOr<GroupSpec> spec = syncgrads::FromProto(request.spec());
      if (spec.ok()) {
        coordinator.Register(member, request.request(), *spec, request.link_rate());
      } else {
        coordinator.Refuse(member, request.request(), spec.status());
      }
      return absl::OkStatus();
    }
    case v1::WorkerSignal::kEndGroup: {
      const v1::EndGroup& end = signal.end_group();
      coordinator.End(member, end.request(), GroupId{end.group()}, Round{end.last_round()},
                      !end.without_updates());
      return absl::OkStatus();
    }
    case v1::WorkerSignal::kLeave:
      coordinator.Leave(member, signal.leave().request(),
                        RoundsFromProto(signal.leave().last_rounds()));
      return absl::OkStatus();
    case v1::WorkerSignal::kCheckpoint:
      coordinator.Checkpointed(member, FromProto(signal.checkpoint()));
      return absl::OkStatus();
    case v1::WorkerSignal::kHello:
    case v1::WorkerSignal::KIND_NOT_SET:
      break;
  }
  return UnknownKind();
}

absl::Status Hear(const v1::ServerSignal& signal, ServerIndex server, const ServerLink* link,
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
                             RoundsFromProto(signal.open_rounds().rounds()));
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
    case v1::ServerSignal::KIND_NOT_SET:
      break;
  }
  return UnknownKind();
}

}  // namespace syncgrads::server
