// Trainer: the next step's forward pass overlaps with the results of the step before.

#include <optional>
#include <variant>
#include <vector>

#include "common/policy.h"
#include "common/status_macros.h"
#include "worker/job/consistency.h"
#include "worker/train/trainer.h"

namespace syncgrads {

template <typename T>
bool Trainer<T>::CanOverlap() const {
  // Steps do not overlap if a worker makes them alone; if their rows or members depend on
  // the step before; or if something needs the whole gradient or the state between two
  // steps.
  const bool clips = optimizer_ != nullptr && job_.clip_norm() > 0;
  return !trains_alone() && !job_.has_elastic() && !batches_->depends_on_members() && !clips &&
         !exchange_.has_value() && options_.extensions->after_step.empty() &&
         std::holds_alternative<Sync>(PolicyOf(job_.consistency()));
}

template <typename T>
absl::StatusOr<bool> Trainer<T>::Overlaps() {
  if (!can_overlap_ || group_->IsStepAnswered() || batches_->RowsAhead(1).empty() ||
      checkpoint_follows_ || IsValidationDue(steps_ + 1)) {
    return false;
  }
  const uint64_t every = job_.check_replicas_every();
  if (every != 0 && (steps_ + 1) % every == 0) return false;
  if (due_tensor_.has_value()) {
    const PhaseClock::Scope waits(phases_, &StepTimes::wait);
    SYNCGRADS_ASSIGN_OR_RETURN(const Contributors due,
                               group_->Wait(*due_tensor_, options_.step_timeout));
    if (due.most > 0) return false;
  }
  return true;
}

template <typename T>
absl::Status Trainer<T>::TakeResult(size_t i, const std::vector<RowId>& rows) {
  if (!unfinished_.has_value()) return absl::OkStatus();
  // A device that has run out of memory ignores later operations, so check it first.
  SYNCGRADS_RETURN_IF_ERROR(device_->memory().status());
  std::optional<Trace::Span> waits(std::in_place, trace(), Trace::Row::kResults, wait_names_[i]);
  std::optional<PhaseClock::Scope> wait(std::in_place, phases_, &StepTimes::wait);
  std::vector<Contributors> contributors(group_->spec().tensors.size());
  SYNCGRADS_ASSIGN_OR_RETURN(contributors[ToNumber(tensors_[i])],
                             group_->Wait(tensors_[i], options_.step_timeout));
  wait.reset();
  waits.reset();
  if (group_->IsStepAnswered()) return FinishBefore(rows);
  // Keeps a copy: if the remaining results do not arrive, KeepState undoes the update.
  if (optimizer_ != nullptr && !optimizer_->Keep(i)) {
    can_overlap_ = false;
    return FinishBefore(rows);
  }
  SYNCGRADS_RETURN_IF_ERROR(UseResults({i}, contributors));
  unfinished_->taken[i] = true;
  return absl::OkStatus();
}

template <typename T>
absl::Status Trainer<T>::FinishBefore(const std::vector<RowId>& rows) {
  if (!unfinished_.has_value()) return absl::OkStatus();
  SYNCGRADS_RETURN_IF_ERROR(FinishUnfinished());
  return BeginContribution(rows);
}

template <typename T>
absl::Status Trainer<T>::FinishUnfinished() {
  if (!unfinished_.has_value()) return absl::OkStatus();
  SYNCGRADS_RETURN_IF_ERROR(FinishStep(unfinished_->rows, unfinished_->loss));
  unfinished_.reset();
  return absl::OkStatus();
}

template <typename T>
absl::Status Trainer<T>::BeginContribution(const std::vector<RowId>& rows) {
  guard_.Begin(steps_ + 1);
  // After the first push, results from the servers may overwrite the parameters.
  if (optimizes_on_servers()) {
    SYNCGRADS_ASSIGN_OR_RETURN(penalty_, FindPenalty());
  }
  if (rows.empty()) return absl::OkStatus();
  if (job_.weight_by_samples()) {
    SYNCGRADS_RETURN_IF_ERROR(group_->SetWeight(static_cast<double>(rows.size())));
  }
  // A codec's residuals are not saved, so the step before a checkpoint leaves none.
  if (checkpoint_follows_ || (KeepsBest() && IsValidationDue(steps_ + 1))) {
    group_->SendUncompressed();
  }
  return OfferCheckpoint();
}

// Instantiates the members that are defined in this file.
#define SYNCGRADS_INSTANTIATE(T)                                                   \
  template bool Trainer<T>::CanOverlap() const;                                    \
  template absl::StatusOr<bool> Trainer<T>::Overlaps();                            \
  template absl::Status Trainer<T>::TakeResult(size_t, const std::vector<RowId>&); \
  template absl::Status Trainer<T>::FinishBefore(const std::vector<RowId>&);       \
  template absl::Status Trainer<T>::FinishUnfinished();                            \
  template absl::Status Trainer<T>::BeginContribution(const std::vector<RowId>&);
SYNCGRADS_INSTANTIATE(float)
SYNCGRADS_INSTANTIATE(double)
#undef SYNCGRADS_INSTANTIATE

}  // namespace syncgrads
