#include "worker/trainer/step_report.h"

#include <string>
#include <vector>

#include "common/status_macros.h"
#include "worker/train/step_callback.h"

namespace syncgrads {

absl::Status ReportStep(TrainingRun& run, Replica& replica, size_t rows,
                        std::optional<double> loss) {
  run.options.progress->Used({.rows = loss.has_value() ? rows : 0,
                              .times = run.phases.Take(),
                              .learning_rate = run.rate.In(run.steps - 1, run.team.world_size())});
  run.options.progress->Stepped(run.steps, loss);

  const std::vector<StepCallback>& callbacks = run.options.extensions->after_step;
  if (callbacks.empty()) return absl::OkStatus();
  const auto save = [&](const std::string& path) { return replica.Save(path); };
  const MadeStep made = {run.steps,       run.plan.steps,        loss,
                         run.team.rank(), run.team.world_size(), save};
  for (const StepCallback& callback : callbacks) SYNCGRADS_RETURN_IF_ERROR(callback(made));
  return absl::OkStatus();
}

}  // namespace syncgrads
