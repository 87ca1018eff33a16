// ChunkRounds: rounds that wait for norms.

#include <utility>
#include <variant>

#include "server/core/chunk_rounds.h"
#include "server/core/norm_closing.h"

namespace syncgrads::server {

bool ChunkRounds::SetNorms(const StepNorms& norms) {
  MutexLock lock(mutex_);
  if (norms.round < open_) return false;
  norms_ = norms;
  return reduced_.has_value() && HasNormsLocked();
}

std::optional<ReducedChunk> ChunkRounds::Reduced() const {
  MutexLock lock(mutex_);
  if (!reduced_.has_value()) return std::nullopt;
  return ReducedLocked();
}

ReducedChunk ChunkRounds::ReducedLocked() const {
  ReducedChunk reduced;
  reduced.generation = generation_;
  reduced.group = plan_.id;
  reduced.chunk = id_;
  reduced.round = open_;
  reduced.epoch = reduced_->made.epoch;
  reduced.stage = reduced_->stage;
  reduced.spans = reduced_->sums;
  return reduced;
}

bool ChunkRounds::WaitsForNormsLocked() const {
  // The first parameters are no gradients.
  return NeedsNorms(plan_.spec) && NewestLocked() != nullptr;
}

void ChunkRounds::ReduceLocked(Made made, Outbox& outbox) {
  reduced_.emplace(ReducedRound{.made = std::move(made)});
  TellSumsLocked(FirstStage(plan_.spec), outbox);
  // They may have been given before this server was restarted.
  if (HasNormsLocked()) UseNormsLocked(outbox);
}

void ChunkRounds::TellSumsLocked(NormStage stage, Outbox& outbox) {
  const Made& made = reduced_->made;
  reduced_->stage = stage;
  reduced_->sums = SumSpans(chunk_, std::get<Optimizer>(plan_.spec.rule), stage, made.closed.counts,
                            *NewestLocked(), *made.slot);
  outbox.reduced.push_back(ReducedLocked());
}

bool ChunkRounds::HasNormsLocked() const {
  return norms_.has_value() && norms_->round == open_ && norms_->epoch == reduced_->made.epoch &&
         norms_->stage() >= reduced_->stage;
}

void ChunkRounds::UseNormsLocked(Outbox& outbox) {
  Made& made = reduced_->made;
  if (!std::exchange(reduced_->clipped, true)) {
    ScaleGradients(chunk_, norms_->gradient_factor, *made.slot);
  }
  if (norms_->stage() < LastStage(plan_.spec)) {
    return TellSumsLocked(LastStage(plan_.spec), outbox);
  }
  ApplyAveraged(chunk_, std::get<Optimizer>(plan_.spec.rule), made.closed.counts, norms_->ratios,
                *NewestLocked(), *made.slot);
  // Those who have come since it was reduced are late, where anybody can be.
  SettleSeatsLocked();
  ReducedRound reduced = *std::exchange(reduced_, std::nullopt);
  KeepLocked(std::move(reduced.made), outbox);
}

}  // namespace syncgrads::server
