#include "common/contract/contract.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/contract/milliseconds.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

absl::Status Unknown(absl::string_view what, int value) {
  return absl::InvalidArgumentError(
      absl::StrCat("unknown ", what, " ", value, "; protocol version ", kProtocolVersion));
}

absl::StatusOr<UpdateRule> FromProto(const v1::UpdateRule& proto) {
  switch (proto.kind_case()) {
    case v1::UpdateRule::kReduction:
      if (proto.reduction() < v1::AVERAGE || proto.reduction() > v1::PRODUCT) {
        return Unknown("reduction", proto.reduction());
      }
      return UpdateRule(static_cast<Reduction>(proto.reduction()));
    case v1::UpdateRule::kGather:
      return UpdateRule(Gather{});
    case v1::UpdateRule::kOptimizer: {
      SYNCGRADS_ASSIGN_OR_RETURN(const Optimizer optimizer,
                                 syncgrads::FromProto(proto.optimizer()));
      return UpdateRule(optimizer);
    }
    case v1::UpdateRule::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("the update rule of a group is not set");
}

void SetRule(const UpdateRule& rule, v1::UpdateRule& proto) {
  if (const auto* reduction = std::get_if<Reduction>(&rule)) {
    proto.set_reduction(static_cast<v1::Reduction>(*reduction));
  } else if (std::holds_alternative<Gather>(rule)) {
    proto.mutable_gather();
  } else {
    *proto.mutable_optimizer() = ToProto(std::get<Optimizer>(rule));
  }
}

struct PolicyWriter {
  v1::Policy& proto;

  void operator()(const Sync&) const { proto.mutable_sync(); }
  void operator()(const First&) const { proto.mutable_first(); }
  void operator()(const Quorum& in) const {
    v1::Quorum& out = *proto.mutable_quorum();
    out.set_least(in.least);
    out.set_grace_ms(absl::ToInt64Milliseconds(in.grace));
    out.set_kept(in.kept);
  }
  void operator()(const Staleness& in) const {
    v1::Staleness& out = *proto.mutable_staleness();
    if (in.bound.has_value()) out.set_bound(*in.bound);
    out.set_scales_rate(in.scales_rate);
  }
};

Policy FromProto(const v1::Policy& proto) {
  switch (proto.kind_case()) {
    case v1::Policy::kFirst:
      return First{};
    case v1::Policy::kQuorum: {
      Quorum quorum;
      quorum.least = proto.quorum().least();
      quorum.grace = MillisecondsFromWire(proto.quorum().grace_ms());
      if (proto.quorum().kept() != 0) quorum.kept = proto.quorum().kept();
      return quorum;
    }
    case v1::Policy::kStaleness: {
      Staleness staleness;
      if (proto.staleness().has_bound()) staleness.bound = proto.staleness().bound();
      staleness.scales_rate = proto.staleness().scales_rate();
      return staleness;
    }
    case v1::Policy::kSync:
    case v1::Policy::KIND_NOT_SET:
      break;
  }
  return Sync{};
}

// Copies an optional field if it is set; otherwise the plain struct keeps its default.
#define SYNCGRADS_READ_OPTIONAL(field) \
  if (proto.has_##field()) out.field = proto.field()

Sgd Read(const v1::Sgd& proto) {
  Sgd out;
  SYNCGRADS_READ_OPTIONAL(learning_rate);
  SYNCGRADS_READ_OPTIONAL(weight_decay);
  return out;
}

template <typename Out, typename Proto>
Out ReadMomentum(const Proto& proto) {
  Out out;
  SYNCGRADS_READ_OPTIONAL(learning_rate);
  SYNCGRADS_READ_OPTIONAL(momentum);
  SYNCGRADS_READ_OPTIONAL(weight_decay);
  return out;
}

RmsProp Read(const v1::RmsProp& proto) {
  RmsProp out;
  SYNCGRADS_READ_OPTIONAL(learning_rate);
  SYNCGRADS_READ_OPTIONAL(decay);
  SYNCGRADS_READ_OPTIONAL(epsilon);
  return out;
}

Adagrad Read(const v1::Adagrad& proto) {
  Adagrad out;
  SYNCGRADS_READ_OPTIONAL(learning_rate);
  SYNCGRADS_READ_OPTIONAL(epsilon);
  return out;
}

template <typename Out, typename Proto>
Out ReadAdam(const Proto& proto) {
  Out out;
  SYNCGRADS_READ_OPTIONAL(learning_rate);
  SYNCGRADS_READ_OPTIONAL(beta1);
  SYNCGRADS_READ_OPTIONAL(beta2);
  SYNCGRADS_READ_OPTIONAL(epsilon);
  if constexpr (!std::is_same_v<Out, Adam>) {
    SYNCGRADS_READ_OPTIONAL(weight_decay);
  }
  return out;
}

Lion Read(const v1::Lion& proto) {
  Lion out;
  SYNCGRADS_READ_OPTIONAL(learning_rate);
  SYNCGRADS_READ_OPTIONAL(beta1);
  SYNCGRADS_READ_OPTIONAL(beta2);
  SYNCGRADS_READ_OPTIONAL(weight_decay);
  return out;
}

Lars Read(const v1::Lars& proto) {
  Lars out = ReadMomentum<Lars>(proto);
  SYNCGRADS_READ_OPTIONAL(trust);
  return out;
}

#undef SYNCGRADS_READ_OPTIONAL

struct OptimizerWriter {
  v1::Optimizer& proto;

  void operator()(const Sgd& in) const {
    v1::Sgd& out = *proto.mutable_sgd();
    out.set_learning_rate(in.learning_rate);
    out.set_weight_decay(in.weight_decay);
  }
  void operator()(const Momentum& in) const { WriteMomentum(in, *proto.mutable_momentum()); }
  void operator()(const Nesterov& in) const { WriteMomentum(in, *proto.mutable_nesterov()); }
  void operator()(const RmsProp& in) const {
    v1::RmsProp& out = *proto.mutable_rms_prop();
    out.set_learning_rate(in.learning_rate);
    out.set_decay(in.decay);
    out.set_epsilon(in.epsilon);
  }
  void operator()(const Adagrad& in) const {
    v1::Adagrad& out = *proto.mutable_adagrad();
    out.set_learning_rate(in.learning_rate);
    out.set_epsilon(in.epsilon);
  }
  void operator()(const Adam& in) const { WriteAdam(in, *proto.mutable_adam()); }
  void operator()(const Lion& in) const {
    v1::Lion& out = *proto.mutable_lion();
    out.set_learning_rate(in.learning_rate);
    out.set_beta1(in.beta1);
    out.set_beta2(in.beta2);
    out.set_weight_decay(in.weight_decay);
  }
  void operator()(const Lamb& in) const {
    v1::Lamb& out = *proto.mutable_lamb();
    WriteAdam(in, out);
    out.set_weight_decay(in.weight_decay);
  }
  void operator()(const Lars& in) const {
    v1::Lars& out = *proto.mutable_lars();
    WriteMomentum(in, out);
    out.set_trust(in.trust);
  }
  void operator()(const AdamW& in) const {
    v1::AdamW& out = *proto.mutable_adam_w();
    WriteAdam(in, out);
    out.set_weight_decay(in.weight_decay);
  }

  template <typename In, typename Out>
  static void WriteMomentum(const In& in, Out& out) {
    out.set_learning_rate(in.learning_rate);
    out.set_momentum(in.momentum);
    out.set_weight_decay(in.weight_decay);
  }
  template <typename In, typename Out>
  static void WriteAdam(const In& in, Out& out) {
    out.set_learning_rate(in.learning_rate);
    out.set_beta1(in.beta1);
    out.set_beta2(in.beta2);
    out.set_epsilon(in.epsilon);
  }
};

v1::Encoding ToProto(const Encoding& encoding) {
  v1::Encoding proto;
  proto.set_codec(static_cast<v1::Codec>(encoding.codec));
  proto.set_fraction(encoding.fraction);
  return proto;
}

}  // namespace

absl::StatusOr<Encoding> FromProto(const v1::Encoding& proto) {
  if (!v1::Codec_IsValid(proto.codec())) return Unknown("codec", proto.codec());
  Encoding encoding{static_cast<Codec>(proto.codec()), proto.fraction()};
  if (encoding.codec == Codec::kTopK && encoding.fraction == 0) {
    encoding.fraction = kDefaultTopKFraction;
  }
  return encoding;
}

v1::Optimizer ToProto(const Optimizer& optimizer) {
  v1::Optimizer proto;
  std::visit(OptimizerWriter{proto}, optimizer);
  return proto;
}

absl::StatusOr<Optimizer> FromProto(const v1::Optimizer& proto) {
  switch (proto.kind_case()) {
    case v1::Optimizer::kSgd:
      return Optimizer(Read(proto.sgd()));
    case v1::Optimizer::kMomentum:
      return Optimizer(ReadMomentum<Momentum>(proto.momentum()));
    case v1::Optimizer::kNesterov:
      return Optimizer(ReadMomentum<Nesterov>(proto.nesterov()));
    case v1::Optimizer::kRmsProp:
      return Optimizer(Read(proto.rms_prop()));
    case v1::Optimizer::kAdagrad:
      return Optimizer(Read(proto.adagrad()));
    case v1::Optimizer::kAdam:
      return Optimizer(ReadAdam<Adam>(proto.adam()));
    case v1::Optimizer::kAdamW:
      return Optimizer(ReadAdam<AdamW>(proto.adam_w()));
    case v1::Optimizer::kLion:
      return Optimizer(Read(proto.lion()));
    case v1::Optimizer::kLamb:
      return Optimizer(ReadAdam<Lamb>(proto.lamb()));
    case v1::Optimizer::kLars:
      return Optimizer(Read(proto.lars()));
    case v1::Optimizer::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("the kind of an optimizer is not set");
}

absl::StatusOr<OnBad> FromProto(v1::OnBad proto) {
  switch (proto) {
    case v1::ON_BAD_UNSPECIFIED:
    case v1::REJECT:
      return OnBad::kReject;
    case v1::SKIP:
      return OnBad::kSkip;
    case v1::ALLOW:
      return OnBad::kAllow;
    default:
      return Unknown("non_finite policy", proto);
  }
}

v1::Schedule ToProto(const RateSchedule& schedule) {
  v1::Schedule proto;
  proto.set_warmup_steps(schedule.warmup_steps);
  proto.set_times_workers(schedule.times_workers);
  if (const auto* decay = std::get_if<StepDecay>(&schedule.decay)) {
    v1::StepSchedule& out = *proto.mutable_step();
    out.mutable_milestones()->Assign(decay->milestones.begin(), decay->milestones.end());
    out.set_factor(decay->factor);
  } else if (const auto* decay = std::get_if<CosineDecay>(&schedule.decay)) {
    v1::CosineSchedule& out = *proto.mutable_cosine();
    out.set_cycle_steps(decay->cycle_steps);
    out.set_minimum(decay->minimum);
    out.set_dampening(decay->dampening);
  }
  return proto;
}

RateSchedule FromProto(const v1::Schedule& proto) {
  RateSchedule schedule;
  schedule.warmup_steps = proto.warmup_steps();
  schedule.times_workers = proto.times_workers();
  if (proto.has_step()) {
    schedule.decay = StepDecay{{proto.step().milestones().begin(), proto.step().milestones().end()},
                               proto.step().factor()};
  } else if (proto.has_cosine()) {
    const double dampening = proto.cosine().dampening();
    schedule.decay = CosineDecay{proto.cosine().cycle_steps(), proto.cosine().minimum(),
                                 dampening == 0 ? 1 : dampening};
  }
  return schedule;
}

v1::GroupSpec ToProto(const GroupSpec& spec) {
  v1::GroupSpec proto;
  proto.set_name(spec.name);
  for (const TensorSpec& tensor : spec.tensors) {
    v1::TensorSpec& out = *proto.add_tensors();
    out.set_name(tensor.name);
    out.set_dtype(static_cast<v1::DType>(tensor.dtype));
    out.mutable_shape()->Assign(tensor.shape.begin(), tensor.shape.end());
  }
  SetRule(spec.rule, *proto.mutable_rule());
  std::visit(PolicyWriter{*proto.mutable_policy()}, spec.policy);
  proto.set_one_epoch(spec.one_epoch);
  proto.set_chunk_bytes(spec.chunk_bytes);
  proto.set_first_chunk_bytes(spec.first_chunk_bytes);
  for (const Compression& compression : spec.compression) {
    v1::Compression& out = *proto.add_compression();
    *out.mutable_push() = ToProto(compression.push);
    *out.mutable_result() = ToProto(compression.result);
  }
  proto.set_non_finite(static_cast<v1::OnBad>(spec.non_finite));
  proto.set_clip_norm(spec.clip_norm);
  proto.set_members_scale_rate(spec.members_scale_rate);
  if (spec.schedule != RateSchedule()) *proto.mutable_schedule() = ToProto(spec.schedule);
  for (const TensorFactors& factors : spec.factors) {
    v1::TensorFactors& out = *proto.add_factors();
    out.set_learning_rate(factors.learning_rate);
    out.set_weight_decay(factors.weight_decay);
  }
  return proto;
}

absl::StatusOr<GroupSpec> FromProto(const v1::GroupSpec& proto) {
  // Each list has at most one entry for each tensor.
  SYNCGRADS_RETURN_IF_ERROR(CheckTensorCount(
      std::max({proto.tensors_size(), proto.compression_size(), proto.factors_size()})));
  GroupSpec spec;
  spec.name = proto.name();
  for (const v1::TensorSpec& tensor : proto.tensors()) {
    if (tensor.dtype() < v1::F64 || tensor.dtype() > v1::I32) {
      return Unknown(absl::StrCat("dtype of tensor \"", tensor.name(), "\":"), tensor.dtype());
    }
    spec.tensors.push_back({tensor.name(),
                            static_cast<DType>(tensor.dtype()),
                            {tensor.shape().begin(), tensor.shape().end()}});
  }
  SYNCGRADS_ASSIGN_OR_RETURN(spec.rule, FromProto(proto.rule()));
  spec.chunk_bytes = proto.chunk_bytes();
  spec.first_chunk_bytes = proto.first_chunk_bytes();
  spec.one_epoch = proto.one_epoch();
  spec.policy = FromProto(proto.policy());
  for (const v1::Compression& compression : proto.compression()) {
    SYNCGRADS_ASSIGN_OR_RETURN(const Encoding push, FromProto(compression.push()));
    SYNCGRADS_ASSIGN_OR_RETURN(const Encoding result, FromProto(compression.result()));
    spec.compression.push_back({push, result});
  }
  SYNCGRADS_ASSIGN_OR_RETURN(spec.non_finite, FromProto(proto.non_finite()));
  spec.clip_norm = proto.clip_norm();
  spec.members_scale_rate = proto.members_scale_rate();
  spec.schedule = FromProto(proto.schedule());
  for (const v1::TensorFactors& factors : proto.factors()) {
    spec.factors.push_back({factors.has_learning_rate() ? factors.learning_rate() : 1,
                            factors.has_weight_decay() ? factors.weight_decay() : 1});
  }
  return spec;
}

v1::GroupPlan ToProto(const GroupPlan& plan) {
  v1::GroupPlan proto;
  proto.set_group(ToNumber(plan.id));
  *proto.mutable_spec() = ToProto(plan.spec);
  for (size_t c = 0; c < plan.servers.size(); ++c) {
    const Chunk& chunk = plan.layout.chunks()[c];
    v1::ChunkPlacement& out = *proto.add_chunks();
    out.set_server(ToNumber(plan.servers[c]));
    out.set_dtype(static_cast<v1::DType>(chunk.dtype));
    out.set_first_element(chunk.first_element);
    out.set_elements(chunk.elements);
  }
  return proto;
}

absl::StatusOr<GroupPlan> FromProto(const v1::GroupPlan& proto) {
  SYNCGRADS_ASSIGN_OR_RETURN(GroupSpec spec, FromProto(proto.spec()));
  SYNCGRADS_ASSIGN_OR_RETURN(Layout layout, LayoutOf(spec));
  if (static_cast<size_t>(proto.chunks_size()) != layout.chunks().size()) {
    return absl::InvalidArgumentError(absl::StrCat("the plan of group \"", spec.name, "\" has ",
                                                   proto.chunks_size(), " chunks, its layout has ",
                                                   layout.chunks().size()));
  }
  std::vector<ServerIndex> servers;
  servers.reserve(layout.chunks().size());
  for (int c = 0; c < proto.chunks_size(); ++c) {
    const v1::ChunkPlacement& theirs = proto.chunks(c);
    const Chunk& ours = layout.chunks()[c];
    if (static_cast<DType>(theirs.dtype()) != ours.dtype ||
        theirs.first_element() != ours.first_element || theirs.elements() != ours.elements) {
      return absl::InvalidArgumentError(
          absl::StrCat("chunk ", c, " of group \"", spec.name, "\" is planned as ",
                       theirs.elements(), " elements from ", theirs.first_element(),
                       ", but the layout has ", ours.elements, " from ", ours.first_element));
    }
    servers.push_back(ServerIndex{theirs.server()});
  }
  return GroupPlan{GroupId{proto.group()}, std::move(spec), std::move(layout), std::move(servers)};
}

v1::Epoch ToProto(const Epoch& epoch) {
  v1::Epoch proto;
  proto.set_number(epoch.number);
  for (const Member& member : epoch.members) {
    v1::Member& out = *proto.add_members();
    out.set_member(ToNumber(member.id));
    out.set_name(member.name);
    out.set_incarnation(ToNumber(member.incarnation));
    out.set_secret_hash(member.secret_hash);
  }
  for (const GroupRound& first : epoch.first_rounds) *proto.add_first_rounds() = ToProto(first);
  if (epoch.handover.has_value()) {
    v1::Handover& handover = *proto.mutable_handover();
    handover.set_donor(ToNumber(epoch.handover->donor));
    for (MemberId member : epoch.handover->to) handover.add_to(ToNumber(member));
    for (const GroupRound& round : epoch.handover->rounds) *handover.add_rounds() = ToProto(round);
  }
  if (!(epoch.learning_rate == LearningRate())) {
    v1::LearningRate& rate = *proto.mutable_learning_rate();
    rate.set_factor(epoch.learning_rate.factor);
    for (const GroupRound& since : epoch.learning_rate.since) *rate.add_since() = ToProto(since);
  }
  return proto;
}

Epoch FromProto(const v1::Epoch& proto) {
  Epoch epoch;
  epoch.number = proto.number();
  for (const v1::Member& member : proto.members()) {
    epoch.members.push_back({MemberId{member.member()}, member.name(),
                             Incarnation{member.incarnation()}, member.secret_hash()});
  }
  epoch.first_rounds = FromProto(proto.first_rounds());
  if (proto.has_handover()) {
    Handover& handover = epoch.handover.emplace();
    handover.donor = MemberId{proto.handover().donor()};
    for (uint32_t member : proto.handover().to()) handover.to.push_back(MemberId{member});
    handover.rounds = FromProto(proto.handover().rounds());
  }
  if (proto.has_learning_rate()) {
    epoch.learning_rate = {proto.learning_rate().factor(),
                           FromProto(proto.learning_rate().since())};
  }
  return epoch;
}

v1::GroupRound ToProto(const GroupRound& round) {
  v1::GroupRound proto;
  proto.set_group(ToNumber(round.group));
  proto.set_round(ToNumber(round.round));
  return proto;
}

GroupRound FromProto(const v1::GroupRound& proto) {
  return {GroupId{proto.group()}, Round{proto.round()}};
}

std::vector<GroupRound> FromProto(
    const google::protobuf::RepeatedPtrField<v1::GroupRound>& rounds) {
  std::vector<GroupRound> out;
  out.reserve(rounds.size());
  for (const v1::GroupRound& round : rounds) out.push_back(FromProto(round));
  return out;
}

v1::Error ToProto(const absl::Status& status) {
  v1::Error proto;
  proto.set_code(static_cast<int>(status.code()));
  proto.set_message(std::string(status.message()));
  return proto;
}

absl::Status FromProto(const v1::Error& proto) {
  const bool known =
      proto.code() > 0 && proto.code() <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  return absl::Status(
      known ? static_cast<absl::StatusCode>(proto.code()) : absl::StatusCode::kUnknown,
      proto.message());
}

}  // namespace syncgrads
