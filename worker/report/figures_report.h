// Reports a worker's training to the coordinator, for its status and the live page.

#ifndef SYNCGRADS_WORKER_REPORT_FIGURES_REPORT_H_
#define SYNCGRADS_WORKER_REPORT_FIGURES_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/signals/figures.h"
#include "worker/report/progress.h"
#include "worker/team/team.h"

namespace syncgrads {

// Numbers that are not finite are left out. Not thread-safe.
class FiguresReport : public Progress {
 public:
  // `team` outlives this object. `device`: see TrainingFigures; what is too long is cut.
  FiguresReport(Team& team, absl::string_view device);

  void Started(const TrainingPlan&) override {}
  void Used(const StepUse& use) override;
  void Stepped(uint64_t step, std::optional<double> loss) override;
  void Validated(uint64_t step, const Scores& scores) override;
  void Finished() override {}
  void Evaluated(absl::string_view rows, const Scores& scores) override;

 private:
  Team& team_;
  TrainingFigures figures_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_REPORT_FIGURES_REPORT_H_
