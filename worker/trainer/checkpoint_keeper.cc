#include "worker/trainer/checkpoint_keeper.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/batches/data_set.h"
#include "worker/evaluation/validation.h"
#include "worker/team/team.h"
#include "worker/trainer/server_optimizer.h"

namespace syncgrads {
namespace {

// How long a checkpoint waits that was requested or is scheduled.
constexpr absl::Duration kMoment = absl::Milliseconds(100);

// The workers of a job that is stopped receive the signal within this time of each other.
constexpr absl::Duration kStopSpread = absl::Seconds(30);

}  // namespace

CheckpointKeeper::CheckpointKeeper(TrainingRun& run, Replica& replica, LayerStates& states,
                                   Validator& validator, TrainingState& state, TrainingGroup* group)
    : run_(run),
      replica_(replica),
      states_(states),
      validator_(validator),
      state_(state),
      group_(group) {
  if (!run.job.has_checkpoint()) return;
  const v1::Checkpoint& checkpoint = run.job.checkpoint();
  schedule_.emplace(
      CheckpointSchedule::Options{checkpoint.every_steps(), absl::Seconds(checkpoint.every_s())},
      run.options.clock->Now());
}

absl::Status CheckpointKeeper::Offer() {
  // A codec's residuals are not saved, so the step before a checkpoint leaves none.
  if (follows_ || (validator_.keeps_best() && validator_.IsDue(run_.steps + 1))) {
    group_->group().SendUncompressed();
  }
  if (!has_checkpoints()) return absl::OkStatus();
  requested_ = run_.team.TakeCheckpointRequest() || requested_;
  const uint64_t step = run_.steps + (group_->compresses() ? 2 : 1);
  const bool asked = requested_ && !run_.options.checkpoints->busy();
  return group_->OfferCheckpoint(asked || schedule_->IsDue(step, run_.options.clock->Now()));
}

bool CheckpointKeeper::IsAgreed(absl::Span<const Contributors> contributors) {
  const bool due = has_checkpoints() && contributors[ToNumber(*group_->due_tensor())].most > 0;
  if (!group_->compresses()) return due;
  // Restarts the schedule now, so that the announced checkpoint is not requested again.
  if (due) NoteAgreed();
  return std::exchange(follows_, due);
}

void CheckpointKeeper::NoteAgreed() {
  schedule_->Taken(run_.options.clock->Now());
  run_.team.TakeCheckpointRequest();
  requested_ = false;
}

absl::Status CheckpointKeeper::Take(const StepOutcome& outcome, bool is_best) {
  const bool is_scheduled = schedule_->IsDue(run_.steps, run_.options.clock->Now());
  const Reason reason = is_last_       ? Reason::kLast
                        : is_best      ? Reason::kBest
                        : is_scheduled ? Reason::kSchedule
                                       : Reason::kRequest;
  NoteAgreed();
  kept_step_ = run_.steps;
  kept_contributors_ = outcome.contributors.size();
  kept_at_ = run_.options.clock->Now();
  SYNCGRADS_RETURN_IF_ERROR(replica_.Fetch(ReplicaPart::kAll));
  // All workers take part in both collectives, whichever of them writes.
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> states, states_.Gather());
  const std::string own = states_.Own();
  states_.UseMean(states);
  const bool writes = outcome.members.front() == run_.team.name();
  SYNCGRADS_ASSIGN_OR_RETURN(const std::optional<Evaluation> evaluation, FindEvaluation(writes));
  const absl::Status begun = writes ? Begin(outcome, reason, states, evaluation) : absl::OkStatus();
  if (!states.empty()) SYNCGRADS_RETURN_IF_ERROR(states_.Use(own));
  return begun;
}

absl::Duration CheckpointKeeper::WaitOf(Reason reason) const {
  if (reason == Reason::kLast) return run_.options.step_timeout;
  if (reason != Reason::kBest) return kMoment;
  // The other workers wait for this one in the next step.
  absl::Duration others_wait = run_.options.step_timeout;
  if (const uint32_t limit_s = run_.job.elastic().step_timeout_s(); limit_s != 0) {
    others_wait = std::min(others_wait, absl::Seconds(limit_s));
  }
  return others_wait / 2;
}

absl::Status CheckpointKeeper::Begin(const StepOutcome& outcome, Reason reason,
                                     const std::vector<std::string>& states,
                                     const std::optional<Evaluation>& evaluation) {
  CheckpointWriter& writer = *run_.options.checkpoints;
  if (const absl::Status free = writer.Finish(WaitOf(reason)); !free.ok()) {
    // A checkpoint that was requested is taken after the other has been written. The
    // request reaches workers at different steps, so it may be repeated.
    requested_ = reason == Reason::kRequest;
    if (requested_) return absl::OkStatus();
    Report({run_.steps, absl::UnavailableError("the previous one is still being written")});
    return absl::OkStatus();
  }
  // The servers must hold the optimizer's state before anything of the next step is
  // pushed.
  std::function<absl::Status(Snapshot&)> complete;
  absl::Status begun;
  if (run_.optimizes_on_servers()) {
    absl::StatusOr<std::unique_ptr<OptimizerSnapshot>> held =
        group_->group().SnapshotOptimizer(run_.options.step_timeout);
    begun = held.status();
    if (begun.ok()) complete = AddServerOptimizer(replica_, *group_, *std::move(held));
  }
  if (begun.ok()) {
    Snapshot snapshot = state_.TakeSnapshot(states);
    snapshot.manifest.workers = static_cast<uint32_t>(outcome.members.size());
    if (evaluation.has_value()) {
      const Scores scores =
          run_.job.has_validation() ? ValidationScores(*evaluation) : ScoresOf(*evaluation);
      snapshot.manifest.evaluation.insert(scores.begin(), scores.end());
      snapshot.manifest.score =
          ScoreOf(run_.job.checkpoint().best() == v1::Checkpoint::ACCURACY, *evaluation);
    }
    begun = writer.Begin(std::move(snapshot), std::move(complete));
  }
  if (!begun.ok()) Report({run_.steps, begun});
  return absl::OkStatus();
}

absl::Status CheckpointKeeper::TakeLast() {
  if (!has_checkpoints() || run_.rounds == 0 || kept_step_ == run_.steps) return absl::OkStatus();
  is_last_ = true;
  SYNCGRADS_ASSIGN_OR_RETURN(const StepOutcome outcome,
                             group_->group().LastStep(run_.options.step_timeout));
  return Take(outcome);
}

absl::StatusOr<std::optional<Evaluation>> CheckpointKeeper::FindEvaluation(bool writes) {
  if (run_.job.checkpoint().best() == v1::Checkpoint::NONE) return std::optional<Evaluation>();
  if (run_.job.has_validation()) return validator_.ResultAfter(run_.steps);
  SoleWorker alone;
  const bool elastic = run_.job.has_elastic();
  // Every worker of an elastic job has all rows, so the worker that writes evaluates
  // alone.
  if (elastic && !writes) return std::optional<Evaluation>();
  Team& team = elastic ? static_cast<Team&>(alone) : run_.team;
  const std::vector<RowId> rows =
      RowsToEvaluate(run_.data, run_.job.data().validation_every(), /*held_out=*/true, team);
  SYNCGRADS_ASSIGN_OR_RETURN(const Evaluation evaluation,
                             replica_.Evaluate("checkpoint/held_out", run_.job.data(), run_.data,
                                               rows, team, {.damaged = run_.skipped_images()}));
  if (evaluation.rows > 0) run_.options.progress->Validated(run_.steps, ScoresOf(evaluation));
  return std::optional<Evaluation>(evaluation);
}

absl::Status CheckpointKeeper::Stop() {
  const uint64_t steps = run_.steps;
  if (has_checkpoints() && kept_step_ != steps) {
    // A checkpoint that has been announced is taken after the next step.
    if (follows_) return absl::OkStatus();
    SYNCGRADS_ASSIGN_OR_RETURN(const bool others_have_stopped, OthersHaveStopped());
    if (others_have_stopped) {
      return absl::CancelledError(
          absl::StrCat("stopped by a signal after step ", steps, "; another worker was stopped ",
                       "after step ", kept_step_, ", and the checkpoint of that step is the last"));
    }
    if (!is_last_) {
      is_last_ = requested_ = true;
      return absl::OkStatus();
    }
  }
  return absl::CancelledError(absl::StrCat("stopped by a signal after step ", steps));
}

absl::StatusOr<bool> CheckpointKeeper::OthersHaveStopped() {
  if (run_.job.has_elastic() || kept_contributors_ == 0) return false;
  if (run_.options.clock->Now() - kept_at_ > kStopSpread) return false;
  SYNCGRADS_ASSIGN_OR_RETURN(const StepOutcome last,
                             group_->group().LastStep(run_.options.step_timeout));
  return last.contributors.size() < kept_contributors_;
}

void CheckpointKeeper::Report(const CheckpointOutcome& outcome) {
  const bool written = outcome.path.ok();
  if (run_.options.note) {
    run_.options.note(
        written ? absl::StrCat("checkpoint after step ", outcome.step, ": ", *outcome.path)
                : absl::StrCat("checkpoint not written after step ", outcome.step, ": ",
                               outcome.path.status().message(), "; training continues"));
  }
  run_.team.ReportCheckpoint(outcome.step, outcome.path);
  run_.options.progress->Checkpointed(written);
  if (run_.options.event_log != nullptr) {
    run_.options.event_log->Checkpointed(outcome.step, outcome.path);
  }
}

void CheckpointKeeper::ReportOutcomes() {
  if (run_.options.checkpoints == nullptr) return;
  for (const CheckpointOutcome& outcome : run_.options.checkpoints->TakeOutcomes()) {
    Report(outcome);
  }
}

void CheckpointKeeper::Finish() {
  if (run_.options.checkpoints == nullptr) return;
  const absl::Status finished = run_.options.checkpoints->Finish(run_.options.step_timeout);
  ReportOutcomes();
  if (!finished.ok() && run_.options.note) run_.options.note(std::string(finished.message()));
}

}  // namespace syncgrads
