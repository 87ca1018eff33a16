#include "server/core/rounds/result_writer.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/optim/optimizer.h"
#include "common/planted_bug.h"
#include "common/status_macros.h"
#include "server/core/closing/encoded_closing.h"
#include "server/core/closing/norm_closing.h"

namespace syncgrads::server {
namespace {

SlotShape ShapeOf(const Chunk& chunk, const UpdateRule& rule, size_t kept) {
  SlotShape shape{.value_bytes = chunk.bytes(), .kept = kept};
  if (const auto* optimizer = std::get_if<Optimizer>(&rule)) {
    shape.optimizer_slots = SlotCount(*optimizer);
    shape.spans = chunk.spans.size();
  }
  if (!chunk.compression.result.is_raw()) shape.residual_bytes = chunk.bytes();
  return shape;
}

}  // namespace

EpochRate RateIn(const GroupSpec& spec, const Epoch& epoch) {
  return {spec.members_scale_rate ? 1 : epoch.learning_rate.factor,
          static_cast<uint32_t>(epoch.members.size())};
}

ScheduledOptimizer OptimizerOf(const GroupSpec& spec, const EpochRate& rate) {
  return {std::get<Optimizer>(spec.rule), spec.factors, spec.schedule, rate.factor, rate.workers};
}

ResultWriter::ResultWriter(const GroupPlan& plan, ChunkId chunk, Generation generation, size_t kept,
                           std::shared_ptr<SlotSource> source, size_t position)
    : plan_(plan),
      id_(chunk),
      chunk_(plan.layout.chunk(chunk)),
      generation_(generation),
      pool_(ShapeOf(chunk_, plan.spec.rule, kept), std::move(source), position) {}

absl::StatusOr<WrittenResult> ResultWriter::Write(const Epoch& epoch,
                                                  absl::Span<const Seated> contributions,
                                                  const Slot* previous) {
  WrittenResult written{.epoch = epoch.number, .rate = RateIn(plan_.spec, epoch)};
  SYNCGRADS_ASSIGN_OR_RETURN(
      written.slot, pool_.Acquire(ResultBytes(chunk_, plan_.spec.rule, contributions.size()),
                                  contributions.size()));
  SYNCGRADS_RETURN_IF_ERROR(Compute(contributions, previous, written));
  return written;
}

absl::Status ResultWriter::WriteAgain(absl::Span<const Seated> contributions, const Slot* previous,
                                      WrittenResult& written) {
  // The checksum is that of the first pass. If the second pass encodes the result, it sets none:
  // the checksum is then computed when the slot is published.
  written.slot->values_checksum.reset();
  return Compute(contributions, previous, written);
}

absl::Status ResultWriter::Compute(absl::Span<const Seated> contributions, const Slot* previous,
                                   WrittenResult& written) {
  const bool check_finite = !TakesNonFinite(plan_.spec);
  const UpdateRule& rule = plan_.spec.rule;
  Slot& slot = *written.slot;
  Closed& closed = written.closed;
  if (!chunk_.compression.result.is_raw()) {
    closed = CloseEncodedReduction(chunk_, std::get<Reduction>(rule), contributions, previous, slot,
                                   check_finite);
  } else if (!std::holds_alternative<Optimizer>(rule)) {
    closed = CloseReduction(chunk_, rule, contributions, slot, check_finite);
  } else if (previous == nullptr) {
    // The first round has parameters, not gradients.
    closed = CloseInitial(chunk_, contributions, slot);
    if (closed.value_bytes == 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "no member pushed the initial parameters of chunk ", ToNumber(id_), " of group \"",
          plan_.spec.name, "\" in round 0: one member must broadcast them"));
    }
  } else if (NeedsNorms(plan_.spec)) {
    closed = AverageGradients(chunk_, contributions, slot, check_finite);
    written.averaged_only = true;
  } else {
    closed = CloseUpdate(chunk_, OptimizerOf(plan_.spec, written.rate), contributions, *previous,
                         slot, check_finite);
  }
  if (std::holds_alternative<Gather>(rule)) return absl::OkStatus();
  for (const Seated& seated : contributions) {
    if (!seated.contribution->skip) closed.contributors.push_back(seated.rank);
  }
  return absl::OkStatus();
}

RoundRecord ResultWriter::PublishResult(Round round, WrittenResult& written) {
  Closed& closed = written.closed;
  RoundRecord record{generation_,
                     plan_.id,
                     id_,
                     round,
                     written.epoch,
                     closed.value_bytes,
                     std::move(closed.counts),
                     std::move(closed.contributors),
                     closed.codec};
  const bool forget = IsPlanted(PlantedBug::kResultNotPublished) && ToNumber(round) % 2 == 1;
  if (!written.slot->record.empty() && !forget) Publish(record, *written.slot);
  return record;
}

}  // namespace syncgrads::server
