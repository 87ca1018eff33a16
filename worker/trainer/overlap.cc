// Together: the next step's forward pass overlaps with the results of the step before.

#include <variant>

#include "common/group/policy.h"
#include "common/status_macros.h"
#include "worker/job/consistency.h"
#include "worker/trainer/together.h"

namespace syncgrads {

bool Together::CanOverlap() const {
  // Steps do not overlap if their rows or members depend on the step before, or if something needs
  // the whole gradient or the state between two steps.
  const bool clips = replica_.has_optimizer() && run_.job.clip_norm() > 0;
  return !run_.job.has_elastic() && !run_.batches->depends_on_members() && !clips &&
         !engine_.joins_batches() && run_.options.extensions->after_step.empty() &&
         std::holds_alternative<Sync>(PolicyOf(run_.job.consistency()));
}

absl::StatusOr<bool> Together::Overlaps() {
  if (!can_overlap_ || group_.group().IsStepAnswered() || run_.batches->RowsAhead(1).empty() ||
      keeper_.follows() || validator_.IsDue(run_.steps + 1)) {
    return false;
  }
  const uint64_t every = run_.job.check_replicas_every();
  if (every != 0 && (run_.steps + 1) % every == 0) return false;
  if (group_.due_tensor().has_value()) {
    const PhaseClock::Scope waits(run_.phases, &StepTimes::wait);
    SYNCGRADS_ASSIGN_OR_RETURN(
        const Contributors due,
        group_.group().Wait(*group_.due_tensor(), run_.options.step_timeout));
    if (due.most > 0) return false;
  }
  return true;
}

absl::Status Together::TakeResult(size_t i, const std::vector<RowId>& rows) {
  if (!unfinished_.has_value()) return absl::OkStatus();
  // A device that has run out of memory ignores later operations, so check it first.
  SYNCGRADS_RETURN_IF_ERROR(replica_.status());
  if (group_.group().IsStepAnswered()) return FinishBefore(rows);
  // Keeps a copy: if the remaining results do not arrive, Trainer::KeepState undoes the update. The
  // device makes it while the result is awaited.
  if (!replica_.Keep(i)) {
    can_overlap_ = false;
    return FinishBefore(rows);
  }
  std::vector<Contributors> contributors(group_.group().spec().tensors.size());
  SYNCGRADS_ASSIGN_OR_RETURN(contributors[ToNumber(group_.tensor(i))], group_.Wait(i));
  if (group_.group().IsStepAnswered()) return FinishBefore(rows);
  SYNCGRADS_RETURN_IF_ERROR(UseResults({i}, contributors));
  unfinished_->taken[i] = true;
  return absl::OkStatus();
}

absl::StatusOr<bool> Together::UploadArrived() {
  if (!can_overlap_ || !replica_.uploads_gradients()) return false;
  SYNCGRADS_ASSIGN_OR_RETURN(const std::optional<size_t> i, group_.NextArrived());
  if (!i.has_value()) return false;
  if (group_.leaves_results_in_place()) SYNCGRADS_RETURN_IF_ERROR(FindGradient(*i));
  replica_.UploadGradient(*i);
  return true;
}

absl::Status Together::FinishBefore(const std::vector<RowId>& rows) {
  if (!unfinished_.has_value()) return absl::OkStatus();
  SYNCGRADS_RETURN_IF_ERROR(FinishUnfinished());
  return BeginContribution(rows);
}

absl::Status Together::FinishUnfinished() {
  if (!unfinished_.has_value()) return absl::OkStatus();
  SYNCGRADS_RETURN_IF_ERROR(FinishStep(unfinished_->rows, unfinished_->loss));
  unfinished_.reset();
  return absl::OkStatus();
}

}  // namespace syncgrads
