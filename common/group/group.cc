#include "common/group/group.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/names.h"
#include "common/optim/optimizer.h"
#include "common/reduction_name.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

constexpr double kMinRateFactor = 1e-6;
constexpr double kMaxRateFactor = 1e6;

std::string ToString(const UpdateRule& rule) {
  if (const auto* reduction = std::get_if<Reduction>(&rule)) {
    return std::string(NameOf(*reduction));
  }
  if (std::holds_alternative<Gather>(rule)) return "gather";
  return ::syncgrads::ToString(std::get<Optimizer>(rule));
}

absl::Status CheckRule(const GroupSpec& spec, const TensorSpec& tensor) {
  if (const auto* reduction = std::get_if<Reduction>(&spec.rule)) {
    if (*reduction == Reduction::kAverage && IsInteger(tensor.dtype)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor \"", tensor.name, "\" of group \"", spec.name, "\" is ", NameOf(tensor.dtype),
          "; an average needs a floating-point dtype: use a sum or another dtype"));
    }
  } else if (std::holds_alternative<Optimizer>(spec.rule)) {
    if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF64) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor \"", tensor.name, "\" of group \"", spec.name, "\" is ", NameOf(tensor.dtype),
          "; an optimizer on the servers supports only f32 and f64"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCompression(const GroupSpec& spec, const TensorSpec& tensor,
                              const Compression& compression) {
  if (compression == Compression()) return absl::OkStatus();
  const std::string what =
      absl::StrCat("the compression of tensor \"", tensor.name, "\" of group \"", spec.name, "\" (",
                   syncgrads::ToString(compression), ")");
  for (const Encoding& encoding : {compression.push, compression.result}) {
    if (const absl::Status status = Validate(encoding); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": ", status.message()));
    }
  }
  if (tensor.dtype != DType::kF32) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " needs dtype f32; the tensor is ", NameOf(tensor.dtype)));
  }
  const auto* reduction = std::get_if<Reduction>(&spec.rule);
  const bool adds =
      reduction != nullptr && (*reduction == Reduction::kAverage || *reduction == Reduction::kSum);
  if (!adds && !std::holds_alternative<Optimizer>(spec.rule)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ", where the rule is ", ToString(spec.rule),
                     ": only averages, sums and gradients for an optimizer can be compressed"));
  }
  if (!adds && !compression.result.is_raw()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ", where the rule is ", ToString(spec.rule),
                     ": its results are parameters, which cannot be compressed"));
  }
  if (std::holds_alternative<First>(spec.policy)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": a group with the policy first cannot be compressed"));
  }
  return absl::OkStatus();
}

absl::Status CheckPolicy(const GroupSpec& spec) {
  if (std::holds_alternative<First>(spec.policy) && !(spec.rule == UpdateRule(Reduction::kSum))) {
    return absl::InvalidArgumentError(
        absl::StrCat("group \"", spec.name, "\" has the policy first and the rule ",
                     ToString(spec.rule), "; the policy first needs the rule sum"));
  }
  const absl::Status valid = Validate(spec.policy);
  if (!valid.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("group \"", spec.name, "\": ", valid.message()));
  }
  if (std::holds_alternative<Staleness>(spec.policy) &&
      !std::holds_alternative<Optimizer>(spec.rule)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "group \"", spec.name, "\" has the policy ", ToString(spec.policy), " and the rule ",
        ToString(spec.rule), "; this policy needs an optimizer on the servers"));
  }
  const bool leaves_behind =
      std::holds_alternative<Quorum>(spec.policy) || std::holds_alternative<Staleness>(spec.policy);
  if (leaves_behind && spec.one_epoch) {
    return absl::InvalidArgumentError(
        absl::StrCat("group \"", spec.name, "\" has the policy ", ToString(spec.policy),
                     " and one_epoch; its steps do not wait for all members of an epoch"));
  }
  return absl::OkStatus();
}

absl::Status CheckNorms(const GroupSpec& spec) {
  if (spec.clip_norm == 0 && !NeedsNorms(spec)) return absl::OkStatus();
  const std::string group = absl::StrCat("group \"", spec.name, "\"");
  if (!std::isfinite(spec.clip_norm) || spec.clip_norm < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(group, " has clip_norm ", spec.clip_norm, ", must be 0 or a positive number"));
  }
  if (!std::holds_alternative<Optimizer>(spec.rule)) {
    return absl::InvalidArgumentError(
        absl::StrCat(group, " has clip_norm ", spec.clip_norm, " and the rule ",
                     ToString(spec.rule), "; clip_norm needs an optimizer on the servers"));
  }
  const std::string what = spec.clip_norm > 0 ? absl::StrCat("clip_norm ", spec.clip_norm)
                                              : absl::StrCat("the rule ", ToString(spec.rule));
  if (std::holds_alternative<Staleness>(spec.policy)) {
    return absl::InvalidArgumentError(absl::StrCat(
        group, " has the policy ", syncgrads::ToString(spec.policy), " and ", what,
        ", which needs norms of a whole step; with this policy, each chunk is updated separately"));
  }
  // Both together would be a deadlock. A worker whose contribution to one chunk is refused waits
  // for the results of its other chunks before it makes that contribution again, and these results
  // would wait for norms that need it.
  if (spec.one_epoch) {
    return absl::InvalidArgumentError(absl::StrCat(
        group, " has one_epoch and ", what,
        ", which needs norms of a whole step; with one_epoch, each chunk is closed separately"));
  }
  return absl::OkStatus();
}

absl::Status CheckSchedule(const GroupSpec& spec) {
  if (spec.schedule == RateSchedule()) return absl::OkStatus();
  const std::string group = absl::StrCat("group \"", spec.name, "\"");
  // First, because the other message has the whole schedule.
  const absl::Status valid = Validate(spec.schedule);
  if (!valid.ok()) return absl::InvalidArgumentError(absl::StrCat(group, ": ", valid.message()));
  if (!std::holds_alternative<Optimizer>(spec.rule)) {
    return absl::InvalidArgumentError(
        absl::StrCat(group, " has the ", ToString(spec.schedule), " and the rule ",
                     ToString(spec.rule), "; a schedule needs an optimizer on the servers"));
  }
  return absl::OkStatus();
}

absl::Status CheckFactors(const GroupSpec& spec) {
  if (spec.factors.empty()) return absl::OkStatus();
  const std::string group = absl::StrCat("group \"", spec.name, "\"");
  if (!std::holds_alternative<Optimizer>(spec.rule)) {
    return absl::InvalidArgumentError(
        absl::StrCat(group, " has factors for its tensors and the rule ", ToString(spec.rule),
                     "; factors need an optimizer on the servers"));
  }
  if (spec.factors.size() != spec.tensors.size()) {
    return absl::InvalidArgumentError(absl::StrCat(group, " has factors for ", spec.factors.size(),
                                                   " tensors, and ", spec.tensors.size(),
                                                   " tensors"));
  }
  for (uint32_t t = 0; t < spec.factors.size(); ++t) {
    absl::Status valid = Validate(spec.factors[t]);
    if (valid.ok()) valid = Validate(OptimizerOf(spec, TensorId{t}));
    if (valid.ok()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", spec.tensors[t].name, "\" of ", group, ": ", valid.message()));
  }
  return absl::OkStatus();
}

// Returns the entry of tensor `t`, or the default if `entries` is empty.
template <typename T>
T EntryOf(const std::vector<T>& entries, size_t t) {
  return t < entries.size() ? entries[t] : T();
}

}  // namespace

bool NeedsNorms(const GroupSpec& spec) {
  const auto* optimizer = std::get_if<Optimizer>(&spec.rule);
  return optimizer != nullptr && (spec.clip_norm > 0 || NeedsNorms(*optimizer));
}

bool HasLearningRate(const GroupSpec& spec) {
  return spec.members_scale_rate || std::holds_alternative<Optimizer>(spec.rule);
}

absl::Status CheckRateFactor(const GroupSpec& spec, double factor) {
  if (!(factor >= kMinRateFactor && factor <= kMaxRateFactor)) {
    return absl::InvalidArgumentError(absl::StrCat("a learning rate factor of ", factor,
                                                   ", must be from ", kMinRateFactor, " to ",
                                                   kMaxRateFactor));
  }
  const auto* optimizer = std::get_if<Optimizer>(&spec.rule);
  if (optimizer == nullptr || spec.members_scale_rate) return absl::OkStatus();
  const size_t rules = std::max<size_t>(1, spec.factors.size());
  for (uint32_t t = 0; t < rules; ++t) {
    const absl::Status valid = Validate(WithRateFactor(OptimizerOf(spec, TensorId{t}), factor));
    if (valid.ok()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "a learning rate factor of ", factor, " for group \"", spec.name, "\": ", valid.message()));
  }
  return absl::OkStatus();
}

Optimizer OptimizerOf(const GroupSpec& spec, TensorId tensor) {
  const Optimizer& rule = std::get<Optimizer>(spec.rule);
  return spec.factors.empty() ? rule : WithFactors(rule, spec.factors[ToNumber(tensor)]);
}

ChunkSizes ChunkSizesOf(const GroupSpec& spec) {
  return {spec.chunk_bytes, spec.first_chunk_bytes};
}

absl::StatusOr<Layout> LayoutOf(const GroupSpec& spec) {
  return Layout::Create(spec.tensors, ChunkSizesOf(spec), spec.compression);
}

absl::string_view NameOf(OnBad on_bad) {
  switch (on_bad) {
    case OnBad::kReject:
      return "REJECT";
    case OnBad::kSkip:
      return "SKIP";
    case OnBad::kAllow:
      return "ALLOW";
  }
  return "unknown";
}

bool TakesNonFinite(const GroupSpec& spec) {
  if (spec.non_finite == OnBad::kAllow) return true;
  return !std::holds_alternative<Optimizer>(spec.rule) &&
         !(spec.rule == UpdateRule(Reduction::kAverage)) &&
         !(spec.rule == UpdateRule(Reduction::kSum));
}

absl::Status Validate(const GroupSpec& spec) {
  if (spec.name.empty()) return absl::InvalidArgumentError("a group has an empty name");
  SYNCGRADS_RETURN_IF_ERROR(CheckName("the name of a group", spec.name));
  SYNCGRADS_RETURN_IF_ERROR(CheckTensors(spec.tensors));
  for (size_t t = 0; t < spec.tensors.size(); ++t) {
    SYNCGRADS_RETURN_IF_ERROR(CheckRule(spec, spec.tensors[t]));
    if (t >= spec.compression.size()) continue;
    SYNCGRADS_RETURN_IF_ERROR(CheckCompression(spec, spec.tensors[t], spec.compression[t]));
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckPolicy(spec));
  SYNCGRADS_RETURN_IF_ERROR(CheckNorms(spec));
  if (const auto* optimizer = std::get_if<Optimizer>(&spec.rule)) {
    SYNCGRADS_RETURN_IF_ERROR(Validate(*optimizer));
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckSchedule(spec));
  SYNCGRADS_RETURN_IF_ERROR(CheckFactors(spec));
  return Layout::CheckChunks(spec.tensors, ChunkSizesOf(spec), spec.compression);
}

absl::Status CheckAgreement(const GroupSpec& ours, const GroupSpec& theirs,
                            const std::string& theirs_owner) {
  const std::string group = absl::StrCat("group \"", ours.name, "\"");
  if (!(ours.rule == theirs.rule)) {
    return absl::InvalidArgumentError(absl::StrCat(group, " has the rule ", ToString(ours.rule),
                                                   " here, but worker \"", theirs_owner,
                                                   "\" registered ", ToString(theirs.rule)));
  }
  if (ours.chunk_bytes != 0 && ours.chunk_bytes != theirs.chunk_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(group, " has chunk_bytes ", ours.chunk_bytes,
                                                   " here, but worker \"", theirs_owner,
                                                   "\" registered ", theirs.chunk_bytes));
  }
  if (ours.first_chunk_bytes != 0 && ours.first_chunk_bytes != theirs.first_chunk_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        group, " has first_chunk_bytes ", ours.first_chunk_bytes, " here, but worker \"",
        theirs_owner, "\" registered ", theirs.first_chunk_bytes));
  }
  if (ours.one_epoch != theirs.one_epoch || !(ours.policy == theirs.policy)) {
    const auto terms = [](const GroupSpec& spec) {
      return absl::StrCat("the policy ", ToString(spec.policy),
                          spec.one_epoch ? ", contributions of one epoch" : "");
    };
    return absl::InvalidArgumentError(absl::StrCat(group, " has ", terms(ours),
                                                   " here, but worker \"", theirs_owner,
                                                   "\" registered ", terms(theirs)));
  }
  if (ours.non_finite != theirs.non_finite) {
    return absl::InvalidArgumentError(
        absl::StrCat(group, " has non_finite ", NameOf(ours.non_finite), " here, but worker \"",
                     theirs_owner, "\" registered ", NameOf(theirs.non_finite)));
  }
  if (ours.clip_norm != theirs.clip_norm) {
    return absl::InvalidArgumentError(absl::StrCat(group, " has clip_norm ", ours.clip_norm,
                                                   " here, but worker \"", theirs_owner,
                                                   "\" registered ", theirs.clip_norm));
  }
  if (ours.members_scale_rate != theirs.members_scale_rate) {
    return absl::InvalidArgumentError(absl::StrCat(
        group, " has members_scale_rate ", ours.members_scale_rate, " here, but worker \"",
        theirs_owner, "\" registered ", theirs.members_scale_rate));
  }
  if (ours.schedule != theirs.schedule) {
    return absl::InvalidArgumentError(
        absl::StrCat(group, " has the ", ToString(ours.schedule), " here, but worker \"",
                     theirs_owner, "\" registered the ", ToString(theirs.schedule)));
  }
  const size_t common = std::min(ours.tensors.size(), theirs.tensors.size());
  for (size_t t = 0; t < common; ++t) {
    const TensorSpec& our = ours.tensors[t];
    const TensorSpec& their = theirs.tensors[t];
    if (our.name != their.name) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", t, " of ", group, " is \"", our.name, "\" here, but worker \"",
                       theirs_owner, "\" registered \"", their.name, "\""));
    }
    if (!(our == their)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", our.name, "\" of ", group, " is ", ToString(our),
                       " here, but worker \"", theirs_owner, "\" registered ", ToString(their)));
    }
  }
  if (ours.tensors.size() != theirs.tensors.size()) {
    return absl::InvalidArgumentError(absl::StrCat(group, " has ", ours.tensors.size(),
                                                   " tensors here, but worker \"", theirs_owner,
                                                   "\" registered ", theirs.tensors.size()));
  }
  for (size_t t = 0; t < common; ++t) {
    const auto differ = [&](absl::string_view what, const auto& our, const auto& their) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor \"", ours.tensors[t].name, "\" of ", group, " has the ", what, " ",
                       syncgrads::ToString(our), " here, but worker \"", theirs_owner,
                       "\" registered ", syncgrads::ToString(their)));
    };
    const Compression compression = EntryOf(ours.compression, t);
    const Compression their_compression = EntryOf(theirs.compression, t);
    if (compression != their_compression) {
      return differ("compression", compression, their_compression);
    }
    const TensorFactors factors = EntryOf(ours.factors, t);
    const TensorFactors their_factors = EntryOf(theirs.factors, t);
    if (factors != their_factors) return differ("factors", factors, their_factors);
  }
  return absl::OkStatus();
}

Round FirstRound(const UpdateRule& rule) {
  return std::holds_alternative<Optimizer>(rule) ? Round{0} : Round{1};
}

std::vector<ServerIndex> PlaceChunks(const Layout& layout, std::vector<uint64_t>& bytes) {
  std::vector<ServerIndex> servers;
  servers.reserve(layout.chunks().size());
  for (const Chunk& chunk : layout.chunks()) {
    const auto least = std::min_element(bytes.begin(), bytes.end());
    *least += chunk.bytes();
    servers.push_back(ServerIndex{static_cast<uint32_t>(least - bytes.begin())});
  }
  return servers;
}

}  // namespace syncgrads
