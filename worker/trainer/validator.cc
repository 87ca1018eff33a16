#include "worker/trainer/validator.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "worker/batches/data_set.h"
#include "worker/team/team.h"

namespace syncgrads {

Validator::Validator(TrainingRun& run, Replica& replica, LayerStates& states)
    : run_(run),
      replica_(replica),
      states_(states),
      record_(run.job.early_stopping(), run.job.checkpoint().best()) {
  if (run.job.has_validation()) {
    schedule_.emplace(run.job.validation(), run.steps_per_epoch, run.epoch_offset);
  }
}

bool Validator::IsDue(uint64_t step) const {
  return schedule_.has_value() && (schedule_->IsDue(step) || step == run_.plan.steps);
}

std::optional<Evaluation> Validator::ResultAfter(uint64_t step) const {
  return was_made_after(step) ? last_ : std::nullopt;
}

std::optional<NamedTensor> Validator::state() {
  return schedule_.has_value() ? std::optional<NamedTensor>(record_.state()) : std::nullopt;
}

absl::StatusOr<Evaluation> Validator::EvaluateRows(size_t members) {
  SoleWorker alone;
  Team& team = run_.job.has_elastic() ? static_cast<Team&>(alone) : run_.team;
  const v1::DataSpec& spec = ValidationDataOf(run_.job);
  const bool own_source = run_.options.validation != nullptr;
  const DataSet& data = own_source ? *run_.options.validation : run_.data;
  const std::vector<RowId> rows =
      RowsToEvaluate(data, own_source ? 0 : run_.job.data().validation_every(),
                     /*held_out=*/!own_source, team);
  SYNCGRADS_ASSIGN_OR_RETURN(
      const Evaluation evaluation,
      replica_.Evaluate("validation", spec, data, rows, team,
                        {TopsOf(run_.job), SkipsDamaged(spec) ? &run_.damaged : nullptr}));
  if (!run_.job.has_elastic() && evaluation.workers < members) {
    return absl::AbortedError(absl::StrCat("a worker was lost in the validation after step ",
                                           run_.steps, ": ", evaluation.workers, " of ", members,
                                           " workers took part"));
  }
  return evaluation;
}

absl::Status Validator::Validate(size_t members) {
  SYNCGRADS_RETURN_IF_ERROR(replica_.Fetch(ReplicaPart::kStates));
  const std::string own = states_.Own();
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> states, states_.Gather());
  states_.UseMean(states);
  absl::StatusOr<Evaluation> evaluation = EvaluateRows(members);
  // After an error too: the worker may continue with this state.
  const absl::Status restored = states.empty() ? absl::OkStatus() : states_.Use(own);
  SYNCGRADS_ASSIGN_OR_RETURN(last_, std::move(evaluation));
  SYNCGRADS_RETURN_IF_ERROR(restored);
  record_.Add(run_.steps, *last_);
  const Scores scores = ValidationScores(*last_);
  if (!scores.empty()) {
    run_.options.progress->Validated(run_.steps, scores);
  } else if (run_.options.warn) {
    run_.options.warn(absl::StrCat("validation after step ", run_.steps, ": no row could be read"));
  }
  // In an elastic job each worker has its own figures, and job files with both are refused.
  if (const std::optional<std::string> reason = record_.ReasonToStop(); reason.has_value()) {
    if (!stops_early_) run_.options.progress->StoppedEarly(run_.steps, *reason);
    stops_early_ = true;
  }
  return absl::OkStatus();
}

absl::Status Validator::ValidateLastStep() {
  if (!schedule_.has_value() || ResultAfter(run_.steps).has_value()) return absl::OkStatus();
  return Validate(run_.team.world_size());
}

void Validator::WatchMembers(const StepOutcome& outcome) {
  std::vector<std::string> lost;
  for (const std::string& member : validated_with_) {
    if (std::find(outcome.members.begin(), outcome.members.end(), member) ==
        outcome.members.end()) {
      lost.push_back(member);
    }
  }
  if (lost.empty()) return;
  validated_with_.clear();
  if (run_.options.note) {
    run_.options.note(absl::StrCat("gone since the validation after step ", record_.last_step(),
                                   ": ", absl::StrJoin(lost, ", "), "; training continues"));
  }
}

}  // namespace syncgrads
