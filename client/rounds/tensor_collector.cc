#include "client/rounds/tensor_collector.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace syncgrads::client {

TensorCollector::TensorCollector(const GroupPlan& plan, Identity identity)
    : plan_(plan),
      identity_(identity),
      tensors_(plan.layout.tensors().size()),
      awaited_(plan.layout.chunks().size()) {
  Begin(FirstRound(plan.spec.rule));
}

void TensorCollector::Begin(Round round) {
  round_ = round;
  weight_ = 1;
  uncompressed_ = false;
  pinned_epoch_.reset();
  collected_ = 0;
  tensors_.assign(tensors_.size(), Tensor());
  for (uint32_t c = 0; c < awaited_.size(); ++c) {
    awaited_[c] = plan_.layout.chunk(ChunkId{c}).spans.size();
  }
}

absl::Status TensorCollector::SetWeight(double weight) {
  if (!(weight > 0) || !std::isfinite(weight)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "weight ", weight, " of group \"", plan_.spec.name, "\" must be positive and finite"));
  }
  if (collected_ > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("call SetWeight before the first push of step ", ToNumber(round_),
                     " of group \"", plan_.spec.name, "\""));
  }
  weight_ = weight;
  return absl::OkStatus();
}

void TensorCollector::SetRestored(const OptimizerState& state) {
  restored_ = &state;
  restored_updates_.resize(awaited_.size());
}

absl::Status TensorCollector::CheckArguments(
    TensorId id, std::optional<absl::Span<const std::byte>> values) const {
  const GroupSpec& spec = plan_.spec;
  if (ToNumber(id) >= spec.tensors.size()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", ToNumber(id), " of group \"",
                                                   spec.name, "\", which has ", spec.tensors.size(),
                                                   " tensors"));
  }
  const TensorSpec& tensor = plan_.layout.tensor(id);
  if (!values.has_value() || values->size() == tensor.bytes()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "tensor \"", tensor.name, "\" has ", values->size(), " bytes, but is ", ToString(tensor),
      " with ", tensor.bytes(), " bytes in group \"", spec.name, "\""));
}

absl::Status TensorCollector::CheckAwaited(TensorId id, bool has_values) const {
  const std::string& name = plan_.layout.tensor(id).name;
  if (data_ended_ && has_values) {
    return absl::FailedPreconditionError(absl::StrCat("this worker has ended its data for group \"",
                                                      plan_.spec.name, "\": tensor \"", name,
                                                      "\" can only be skipped"));
  }
  // A skip does not depend on who the members are, and neither do the initial parameters (round 0).
  if (plan_.spec.one_epoch && has_values && round_ > Round{0} && !pinned_epoch_.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a contribution to step ", ToNumber(round_), " of group \"", plan_.spec.name,
                     "\" depends on its members: call BeginStep first"));
  }
  const Tensor& tensor = tensors_[ToNumber(id)];
  if (tensor.state != State::kAwaited) {
    return absl::FailedPreconditionError(absl::StrCat(
        "tensor \"", name, "\" has been ", tensor.state == State::kPushed ? "pushed" : "skipped",
        " in step ", ToNumber(round_), " of group \"", plan_.spec.name,
        "\": call WaitStep to begin the next"));
  }
  return absl::OkStatus();
}

absl::Status TensorCollector::Collect(TensorId id,
                                      std::optional<absl::Span<const std::byte>> values,
                                      Destination result) {
  SYNCGRADS_RETURN_IF_ERROR(CheckAwaited(id, values.has_value()));
  Tensor& tensor = tensors_[ToNumber(id)];
  tensor.state = values.has_value() ? State::kPushed : State::kSkipped;
  tensor.values = values.value_or(absl::Span<const std::byte>());
  tensor.result = result;
  ++collected_;
  const Layout::ChunkRange range = plan_.layout.ChunksOf(id);
  for (uint32_t c = range.first; c < range.first + range.count; ++c) --awaited_[c];
  return absl::OkStatus();
}

Contribution TensorCollector::ContributionTo(ChunkId id, uint64_t epoch) {
  const Chunk& chunk = plan_.layout.chunk(id);
  const size_t element = SizeOf(chunk.dtype);
  Contribution contribution;
  contribution.uncompressed = uncompressed_;
  PushHeader& header = contribution.header;
  header.generation = identity_.generation;
  header.group = plan_.id;
  header.chunk = id;
  header.round = round_;
  header.member = identity_.member;
  header.incarnation = identity_.incarnation;
  header.epoch = pinned_epoch_.value_or(epoch);
  header.weight = weight_ == 1 ? 0 : weight_;
  header.without_result = true;
  std::vector<absl::Span<const std::byte>>& present = contribution.spans;
  for (uint32_t s = 0; s < chunk.spans.size(); ++s) {
    const Span& span = chunk.spans[s];
    const Tensor& tensor = tensors_[ToNumber(span.tensor)];
    if (tensor.state == State::kPushed) {
      present.push_back(
          tensor.values.subspan(span.tensor_offset * element, span.elements * element));
    } else {
      header.absent_spans.push_back(s);
    }
    if (tensor.result.is_wanted()) header.without_result = false;
  }
  if (!present.empty() && restored_ != nullptr && round_ == Round{0}) {
    for (absl::Span<const std::byte> span :
         RestoredSpans(chunk, *restored_, restored_updates_[ToNumber(id)])) {
      present.push_back(span);
    }
  }
  if (present.empty()) {
    header.skip = true;
    header.weight = 0;
    header.absent_spans.clear();
  }
  return contribution;
}

const TensorSpec& TensorCollector::FindAwaited(ChunkId id) const {
  const Chunk& chunk = plan_.layout.chunk(id);
  for (const Span& span : chunk.spans) {
    if (tensors_[ToNumber(span.tensor)].state == State::kAwaited) {
      return plan_.layout.tensor(span.tensor);
    }
  }
  return plan_.layout.tensor(chunk.spans.front().tensor);
}

absl::StatusOr<Round> TensorCollector::EndData() {
  if (round_ == Round{0}) {
    return absl::FailedPreconditionError(absl::StrCat(
        "group \"", plan_.spec.name, "\" has no parameters yet: call Broadcast before End"));
  }
  if (collected_ > 0 && collected_ < tensors_.size()) {
    const auto awaited = std::find_if(tensors_.begin(), tensors_.end(), [](const Tensor& tensor) {
      return tensor.state == State::kAwaited;
    });
    return absl::FailedPreconditionError(
        absl::StrCat("tensor \"", plan_.spec.tensors[awaited - tensors_.begin()].name,
                     "\" has not been pushed or skipped in step ", ToNumber(round_), " of group \"",
                     plan_.spec.name, "\", but other tensors have: push or skip it before End"));
  }
  data_ended_ = true;
  return collected_ == 0 ? Previous(round_) : round_;
}

std::vector<Destination> TensorCollector::Results() const {
  std::vector<Destination> results;
  results.reserve(tensors_.size());
  for (const Tensor& tensor : tensors_) results.push_back(tensor.result);
  return results;
}

bool TensorCollector::IsInPlace(ChunkId chunk) const {
  for (const Span& span : plan_.layout.chunk(chunk).spans) {
    if (ResultOf(span.tensor).in_place) return true;
  }
  return false;
}

bool TensorCollector::StaysInPlace(const UpdateFrame& answer) const {
  const bool is_shared = answer.header.shared.has_value() && answer.header.codec == Codec::kRaw;
  for (const Span& span : plan_.layout.chunk(answer.header.chunk).spans) {
    const Destination& result = ResultOf(span.tensor);
    if (result.in_place && (is_shared || result.buffer.empty())) return true;
  }
  return false;
}

absl::Status TensorCollector::CheckRoom(const UpdateFrame& answer) const {
  for (const Span& span : plan_.layout.chunk(answer.header.chunk).spans) {
    const size_t room = ResultOf(span.tensor).buffer.size();
    const size_t bytes = plan_.layout.tensor(span.tensor).bytes();
    if (room == 0 || room / bytes >= answer.header.contributors.size()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "output of gather \"", plan_.spec.name, "\" has room for ", room / bytes,
        " contributions, but ", answer.header.contributors.size(), " members contributed"));
  }
  return absl::OkStatus();
}

std::vector<Target> TensorCollector::TargetsOf(const UpdateFrame& answer) const {
  const Chunk& chunk = plan_.layout.chunk(answer.header.chunk);
  const size_t element = SizeOf(chunk.dtype);
  const bool gathers = std::holds_alternative<Gather>(plan_.spec.rule);
  const bool holds_parameters = std::holds_alternative<Optimizer>(plan_.spec.rule);
  std::vector<Target> targets;
  if (TotalBytes(answer.payload) == 0) return targets;
  const bool stays = StaysInPlace(answer);
  const size_t copies = gathers ? answer.header.contributors.size() : 1;
  targets.reserve(copies * chunk.spans.size());
  for (size_t copy = 0; copy < copies; ++copy) {
    for (size_t s = 0; s < chunk.spans.size(); ++s) {
      const Span& span = chunk.spans[s];
      const Destination& result = ResultOf(span.tensor);
      const absl::Span<std::byte> buffer = result.buffer;
      const bool wanted = !buffer.empty() && !(stays && result.in_place) &&
                          (answer.header.counts[s] > 0 || holds_parameters);
      const size_t begin =
          copy * plan_.layout.tensor(span.tensor).bytes() + span.tensor_offset * element;
      targets.push_back({wanted ? buffer.data() + begin : nullptr, span.elements * element});
    }
  }
  return targets;
}

}  // namespace syncgrads::client
