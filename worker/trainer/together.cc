#include "worker/trainer/together.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/base/out_of_memory.h"
#include "worker/team/replicas.h"
#include "worker/trainer/gradient_checks.h"
#include "worker/trainer/step_report.h"

namespace syncgrads {

Together::Together(TrainingRun& run, Replica& replica, GradientEngine& engine, TrainingGroup& group,
                   Validator& validator, TrainingState& state, CheckpointKeeper& keeper)
    : run_(run),
      replica_(replica),
      engine_(engine),
      group_(group),
      validator_(validator),
      state_(state),
      keeper_(keeper),
      can_overlap_(CanOverlap()) {
  // Clipping changes the gradients before they are applied, so they must be in this worker's
  // memory.
  if (replica.takes_pieces() && !(run.job.clip_norm() > 0)) group.LeaveResultsInPlace();
}

absl::Status Together::Run() {
  if (run_.plan.averages_losses) {
    losses_.emplace(run_.team, *run_.options.progress, *run_.options.clock);
  }
  const absl::Status made = MakeSteps();
  if (!losses_.has_value() || (!made.ok() && !absl::IsCancelled(made))) return made;
  // A worker cannot leave the job in order while the sum of the losses is under way.
  const absl::Status finished = losses_->Finish();
  return made.ok() ? finished : made;
}

absl::Status Together::MakeSteps() {
  while (!run_.batches->ended() && !validator_.stops_early()) {
    SYNCGRADS_RETURN_IF_ERROR(CheckStop());
    SYNCGRADS_RETURN_IF_ERROR(group_.group().steps_behind() > 0 ? FollowStep() : TrainStep());
  }
  return group_.EndAndFollow([&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(CheckStop());
    return FollowStep();
  });
}

absl::Status Together::CheckStop() {
  if (!run_.stop_is_requested()) return absl::OkStatus();
  SYNCGRADS_RETURN_IF_ERROR(FinishUnfinished());
  return keeper_.Stop();
}

absl::Status Together::TrainStep() {
  while (true) {
    StepMembers members;
    if (run_.batches->depends_on_members()) {
      const PhaseClock::Scope waits(run_.phases, &StepTimes::wait);
      SYNCGRADS_ASSIGN_OR_RETURN(members, group_.group().BeginStep());
    }
    const std::vector<RowId> rows =
        unfinished_.has_value() ? run_.batches->RowsAhead(1) : run_.batches->RowsFor(members);
    const Trace::Span span(run_.trace(step_under_way()), Trace::Row::kSteps, "step",
                           step_under_way() + 1);
    SYNCGRADS_ASSIGN_OR_RETURN(const std::optional<double> loss, PushBatch(rows));
    SYNCGRADS_ASSIGN_OR_RETURN(const bool overlaps, Overlaps());
    if (overlaps) {
      unfinished_.emplace(Unfinished{rows, loss, std::vector<bool>(replica_.parameters().size())});
      return absl::OkStatus();
    }
    const absl::Status finished = FinishStep(rows, loss);
    if (!absl::IsAborted(finished) || !run_.batches->depends_on_members()) return finished;
    // The step's members have changed since its rows were assigned.
    SYNCGRADS_RETURN_IF_ERROR(group_.group().RestartStep(run_.options.step_timeout));
  }
}

absl::Status Together::FollowStep() {
  run_.guard.Begin(run_.steps + 1);
  SYNCGRADS_RETURN_IF_ERROR(engine_.JoinWithoutRows());
  SYNCGRADS_RETURN_IF_ERROR(group_.SkipAll());
  return FinishStep({}, std::nullopt);
}

absl::Status Together::BeginContribution(const std::vector<RowId>& rows) {
  run_.guard.Begin(run_.steps + 1);
  if (rows.empty()) return absl::OkStatus();
  if (run_.job.weight_by_samples()) {
    SYNCGRADS_RETURN_IF_ERROR(group_.group().SetWeight(static_cast<double>(rows.size())));
  }
  return keeper_.Offer();
}

absl::StatusOr<std::optional<double>> Together::PushBatch(const std::vector<RowId>& rows) {
  if (!unfinished_.has_value()) SYNCGRADS_RETURN_IF_ERROR(BeginContribution(rows));
  if (rows.empty()) {
    SYNCGRADS_RETURN_IF_ERROR(engine_.JoinWithoutRows());
    SYNCGRADS_RETURN_IF_ERROR(group_.SkipAll());
    return std::optional<double>();
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const std::optional<double> loss, ComputeAndPush(rows));
  if (!loss.has_value() || !run_.guard.watches_norms()) return loss;
  SYNCGRADS_ASSIGN_OR_RETURN(const bool admitted, AdmitGradient(replica_.parameters(), run_.guard));
  SYNCGRADS_RETURN_IF_ERROR(admitted ? group_.PushAll() : group_.SkipAll());
  return loss;
}

absl::StatusOr<std::optional<double>> Together::ComputeAndPush(const std::vector<RowId>& rows) {
  const PhaseClock::Scope computes(run_.phases, &StepTimes::compute);
  group_.Begin();
  const uint64_t before = unfinished_.has_value() ? 1 : 0;  // steps that are not counted yet
  const auto rows_ahead = [&](size_t steps) { return run_.batches->RowsAhead(before + steps); };
  const absl::StatusOr<double> computed = engine_.Compute(
      {step_under_way(), rows, rows_ahead}, [&](size_t i) { return TakeResult(i, rows); },
      [&](size_t i) { return run_.guard.watches_norms() ? absl::OkStatus() : group_.Push(i); },
      [&] { return UploadArrived(); });
  if (IsOutOfMemory(computed.status()) && !engine_.joins_batches()) {
    SYNCGRADS_RETURN_IF_ERROR(FinishBefore(rows));
    run_.guard.NoteOutOfMemory(computed.status().message());
    SYNCGRADS_RETURN_IF_ERROR(group_.SkipRest());
    return std::optional<double>();
  }
  SYNCGRADS_RETURN_IF_ERROR(computed.status());
  return std::optional<double>(*computed);
}

absl::Status Together::FinishStep(const std::vector<RowId>& rows, std::optional<double> loss) {
  // In WaitStep the client may send this state to a newcomer, so the host must have it.
  if (run_.job.has_elastic()) SYNCGRADS_RETURN_IF_ERROR(replica_.Fetch(ReplicaPart::kTrained));
  const uint64_t step = group_.group().step();
  // The workers of an elastic job may need very different times for a validation.
  const bool waits_for_validations =
      run_.job.has_elastic() && run_.steps > 0 && validator_.was_made_after(run_.steps);
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<Contributors> contributors,
                             group_.WaitStep(waits_for_validations ? absl::InfiniteDuration()
                                                                   : run_.options.step_timeout));
  // More than 1 if this worker was late under a quorum and the others continued without it.
  const uint64_t made = group_.group().step() - step;
  std::vector<size_t> left;
  for (size_t i = 0; i < replica_.parameters().size(); ++i) {
    if (!unfinished_.has_value() || !unfinished_->taken[i]) left.push_back(i);
  }
  SYNCGRADS_RETURN_IF_ERROR(UseResults(left, contributors));
  replica_.ForgetKept();
  run_.steps += made;
  replica_.UpdateAverage(run_.steps);
  state_.SaveCounters();
  return EndStep(rows, loss, made, keeper_.IsAgreed(contributors));
}

absl::Status Together::UseResults(absl::Span<const size_t> parameters,
                                  absl::Span<const Contributors> contributors) {
  const PhaseClock::Scope applies(run_.phases, &StepTimes::apply);
  run_.rate.of_job = group_.group().learning_rate_factor();
  if (!replica_.has_optimizer()) {
    replica_.Upload(parameters);
    return absl::OkStatus();
  }
  // A parameter to which no worker contributed a gradient is not updated.
  std::vector<size_t> with_gradients;
  for (const size_t i : parameters) {
    if (contributors[ToNumber(group_.tensor(i))].most > 0) with_gradients.push_back(i);
  }
  const double factor = run_.rate.FactorIn(run_.steps, run_.team.world_size());
  const Trace::Span span(run_.trace(step_under_way()), Trace::Row::kResults, "update");
  if (group_.leaves_results_in_place()) {
    for (const size_t i : with_gradients) {
      if (!replica_.is_uploaded(i)) SYNCGRADS_RETURN_IF_ERROR(FindGradient(i));
    }
  } else {
    ClipGradients(replica_.parameters(), with_gradients, run_.job.clip_norm());
  }
  SYNCGRADS_RETURN_IF_ERROR(replica_.Apply(with_gradients, factor));
  // Starts to fetch what a newcomer may receive, in parallel with the next forward pass.
  if (run_.job.has_elastic()) replica_.BeginFetch();
  return absl::OkStatus();
}

absl::Status Together::FindGradient(size_t i) {
  SYNCGRADS_ASSIGN_OR_RETURN(std::vector<absl::Span<const std::byte>> pieces, group_.Result(i));
  replica_.SetGradient(i, std::move(pieces));
  return absl::OkStatus();
}

absl::Status Together::EndStep(const std::vector<RowId>& rows, std::optional<double> loss,
                               uint64_t made, bool is_agreed) {
  const bool validates = validator_.IsDue(run_.steps);
  StepOutcome outcome;
  if (run_.batches->depends_on_members() || run_.options.event_log != nullptr || is_agreed ||
      validates || validator_.watches_members()) {
    const PhaseClock::Scope gets(run_.phases, &StepTimes::wait);
    SYNCGRADS_ASSIGN_OR_RETURN(outcome, group_.group().LastStep(run_.options.step_timeout));
  }
  if (run_.options.event_log != nullptr) {
    run_.options.event_log->Stepped(outcome, rows, run_.data.data);
  }
  // This worker's rows of the steps that it missed are not used by any worker.
  run_.batches->Advance(outcome);
  for (uint64_t missed = 1; missed < made && !run_.batches->ended(); ++missed) {
    run_.batches->Advance(outcome);
  }
  if (losses_.has_value()) {
    const PhaseClock::Scope waits(run_.phases, &StepTimes::wait);
    SYNCGRADS_RETURN_IF_ERROR(losses_->Stepped(run_.steps, loss.has_value() ? rows.size() : 0, loss,
                                               /*is_last=*/run_.steps == run_.plan.steps));
  }
  SYNCGRADS_RETURN_IF_ERROR(ReportStep(run_, replica_, rows.size(), loss));
  SYNCGRADS_RETURN_IF_ERROR(run_.guard.Finish());
  SYNCGRADS_RETURN_IF_ERROR(CheckReplicas());
  if (validator_.watches_members()) validator_.WatchMembers(outcome);
  if (validates) SYNCGRADS_RETURN_IF_ERROR(validator_.Validate(outcome.members.size()));
  if (validates && run_.job.has_elastic()) validator_.NoteMembers(outcome);
  const bool is_best = validates && validator_.keeps_best() && validator_.is_best();
  if (is_agreed || is_best) SYNCGRADS_RETURN_IF_ERROR(keeper_.Take(outcome, is_best));
  keeper_.ReportOutcomes();
  return absl::OkStatus();
}

absl::Status Together::CheckReplicas() {
  const uint64_t every = run_.job.check_replicas_every();
  if (every == 0 || run_.steps % every != 0) return absl::OkStatus();
  SYNCGRADS_ASSIGN_OR_RETURN(const ReplicaCheck check, replica_.Compare(run_.team));
  if (check.identical()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("after step ", run_.steps, " ", ToString(check)));
}

}  // namespace syncgrads
