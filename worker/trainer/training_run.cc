#include "worker/trainer/training_run.h"

#include <utility>

#include "common/contract/contract.h"

namespace syncgrads {
namespace {

StepGuard::Options GuardOptions(const v1::JobFile& job, const TrainerOptions& options) {
  const v1::GradientChecks& checks = job.gradient_checks();
  StepGuard::Options guard;
  guard.outlier_factor = checks.outlier_factor();
  guard.outliers = OnBadOf(checks.outliers());
  guard.non_finite = OnBadOf(checks.non_finite());
  if (checks.history() != 0) guard.history = checks.history();
  if (job.max_skips_in_a_row() != 0) guard.max_in_a_row = job.max_skips_in_a_row();
  guard.warn = options.warn;
  return guard;
}

}  // namespace

OnBad OnBadOf(v1::OnBad proto) { return FromProto(proto).value_or(OnBad::kReject); }

TrainingRun::TrainingRun(const v1::JobFile& job, const DataSet& data, Team& team,
                         const TrainerOptions& options, std::unique_ptr<Batches> batches)
    : job(job),
      data(data),
      team(team),
      options(options),
      batches(std::move(batches)),
      guard(GuardOptions(job, options)) {}

DamagedImages* TrainingRun::skipped_images() {
  return SkipsDamaged(job.data()) ? &damaged : nullptr;
}

}  // namespace syncgrads
