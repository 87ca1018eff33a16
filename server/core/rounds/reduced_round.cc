#include "server/core/rounds/reduced_round.h"

#include <utility>
#include <variant>

#include "server/core/closing/norm_closing.h"

namespace syncgrads::server {

ReducedRound::ReducedRound(const GroupPlan& plan, ChunkId chunk, Generation generation)
    : plan_(plan), id_(chunk), chunk_(plan.layout.chunk(chunk)), generation_(generation) {}

void ReducedRound::Begin(Round round, WrittenResult averaged, const Slot& previous) {
  open_.emplace(Open{.round = round, .written = std::move(averaged)});
  BeginStage(FirstStage(plan_.spec), previous);
}

void ReducedRound::BeginStage(NormStage stage, const Slot& previous) {
  const WrittenResult& written = open_->written;
  open_->stage = stage;
  open_->sums = SumSpans(chunk_, OptimizerOf(plan_.spec, written.rate), stage,
                         written.closed.counts, previous, *written.slot);
}

ReducedChunk ReducedRound::Report() const {
  ReducedChunk reduced;
  reduced.generation = generation_;
  reduced.group = plan_.id;
  reduced.chunk = id_;
  reduced.round = open_->round;
  reduced.epoch = open_->written.epoch;
  reduced.stage = open_->stage;
  reduced.spans = open_->sums;
  return reduced;
}

bool ReducedRound::HasNorms() const {
  return open_.has_value() && norms_.has_value() && norms_->round == open_->round &&
         norms_->epoch == open_->written.epoch && norms_->stage() >= open_->stage;
}

std::optional<WrittenResult> ReducedRound::UseNorms(const Slot& previous) {
  Slot& slot = *open_->written.slot;
  if (!std::exchange(open_->clipped, true)) ScaleGradients(chunk_, norms_->gradient_factor, slot);
  if (norms_->stage() < LastStage(plan_.spec)) {
    BeginStage(LastStage(plan_.spec), previous);
    return std::nullopt;
  }
  ApplyAveraged(chunk_, OptimizerOf(plan_.spec, open_->written.rate), open_->written.closed.counts,
                norms_->ratios, previous, slot);
  std::optional<WrittenResult> written = std::move(open_->written);
  open_.reset();
  return written;
}

}  // namespace syncgrads::server
