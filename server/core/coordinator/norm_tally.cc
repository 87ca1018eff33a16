#include "server/core/coordinator/norm_tally.h"

#include <cmath>
#include <variant>

#include "common/optim/clip.h"

namespace syncgrads::server {

void NormTally::Reduced(ServerIndex server, const ReducedChunk& chunk) {
  const uint32_t c = ToNumber(chunk.chunk);
  if (c >= parts_.size() || plan_->servers[c] != server) return;
  if (chunk.spans.size() != plan_->layout.chunks()[c].spans.size()) return;
  const Position position{chunk.epoch, chunk.round, chunk.stage};
  if (position < position_) return;
  if (position > position_) {
    position_ = position;
    for (std::vector<SquareSums>& part : parts_) part.clear();
    reported_ = 0;
  }
  reported_ += parts_[c].empty();
  parts_[c] = chunk.spans;
}

void NormTally::Forget(ServerIndex server) {
  for (size_t c = 0; c < parts_.size(); ++c) {
    if (plan_->servers[c] != server) continue;
    reported_ -= !parts_[c].empty();
    parts_[c].clear();
  }
}

bool NormTally::IsDecided() const {
  return decided_.has_value() &&
         position_ <= Position{decided_->epoch, decided_->round, decided_->stage()};
}

std::vector<SquareSums> NormTally::SumTensors() const {
  std::vector<SquareSums> tensors(plan_->spec.tensors.size());
  for (size_t c = 0; c < parts_.size(); ++c) {
    const std::vector<Span>& spans = plan_->layout.chunks()[c].spans;
    for (size_t s = 0; s < spans.size(); ++s) tensors[ToNumber(spans[s].tensor)] += parts_[c][s];
  }
  return tensors;
}

std::optional<StepNorms> NormTally::Decide(absl::FunctionRef<uint64_t(Round)> epoch_of) const {
  if (reported_ < parts_.size()) return std::nullopt;
  if (IsDecided() || epoch_of(position_.round) != position_.epoch) return std::nullopt;
  const std::vector<SquareSums> tensors = SumTensors();
  StepNorms norms{plan_->id, position_.round, position_.epoch, 1, {}};
  if (position_.stage == NormStage::kGradient) {
    double sum = 0;
    for (const SquareSums& tensor : tensors) sum += tensor.change;
    norms.gradient_factor = ClipFactor(std::sqrt(sum), plan_->spec.clip_norm);
    return norms;
  }
  // The second stage keeps the clipping factor of the first.
  if (decided_.has_value() && decided_->round == norms.round && decided_->epoch == norms.epoch) {
    norms.gradient_factor = decided_->gradient_factor;
  }
  for (uint32_t t = 0; t < tensors.size(); ++t) {
    norms.ratios.push_back(RatioOf(OptimizerOf(plan_->spec, TensorId{t}), tensors[t]));
  }
  return norms;
}

}  // namespace syncgrads::server
