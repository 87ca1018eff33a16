#include "worker/trainer/solo_steps.h"

#include <numeric>

#include "client/client.h"
#include "common/status_macros.h"
#include "worker/base/out_of_memory.h"
#include "worker/trainer/gradient_checks.h"
#include "worker/trainer/step_report.h"

namespace syncgrads {

absl::Status SoloSteps::Make(size_t count, std::vector<RowId>& rows) {
  for (size_t step = 0; step < count && !run_.batches->ended(); ++step) {
    SYNCGRADS_RETURN_IF_ERROR(CheckStop());
    SYNCGRADS_RETURN_IF_ERROR(MakeOne(rows));
  }
  return absl::OkStatus();
}

absl::Status SoloSteps::MakeOne(std::vector<RowId>& rows) {
  run_.guard.Begin(run_.steps + 1);
  const std::vector<RowId> batch = run_.batches->RowsFor(StepMembers());
  std::optional<double> loss;
  bool applied = false;
  if (!batch.empty()) {
    SYNCGRADS_ASSIGN_OR_RETURN(loss, Compute(batch));
  }
  if (loss.has_value()) {
    SYNCGRADS_ASSIGN_OR_RETURN(applied, Apply());
  }
  if (applied) rows.insert(rows.end(), batch.begin(), batch.end());
  ++run_.steps;
  run_.batches->Advance(StepOutcome());
  SYNCGRADS_RETURN_IF_ERROR(ReportStep(run_, replica_, applied ? batch.size() : 0, loss));
  return run_.guard.Finish();
}

absl::StatusOr<std::optional<double>> SoloSteps::Compute(const std::vector<RowId>& batch) {
  const PhaseClock::Scope computes(run_.phases, &StepTimes::compute);
  const auto rows_ahead = [&](size_t steps) { return run_.batches->RowsAhead(steps); };
  const auto nothing = [](size_t) { return absl::OkStatus(); };
  const absl::StatusOr<double> computed =
      engine_.Compute({run_.steps, batch, rows_ahead}, nothing, nothing, [] { return false; });
  if (IsOutOfMemory(computed.status()) && !engine_.joins_batches()) {
    run_.guard.NoteOutOfMemory(computed.status().message());
    return std::optional<double>();
  }
  SYNCGRADS_RETURN_IF_ERROR(computed.status());
  return std::optional<double>(*computed);
}

absl::StatusOr<bool> SoloSteps::Apply() {
  if (run_.guard.watches_norms() || non_finite_ == NonFinite::kRefused) {
    SYNCGRADS_ASSIGN_OR_RETURN(const bool admitted,
                               AdmitGradient(replica_.parameters(), run_.guard));
    if (!admitted) return false;
  }
  const PhaseClock::Scope applies(run_.phases, &StepTimes::apply);
  std::vector<size_t> all(replica_.parameters().size());
  std::iota(all.begin(), all.end(), 0);
  ClipGradients(replica_.parameters(), all, run_.job.clip_norm());
  SYNCGRADS_RETURN_IF_ERROR(
      replica_.Apply(all, run_.rate.FactorIn(run_.steps, run_.team.world_size())));
  return true;
}

}  // namespace syncgrads
