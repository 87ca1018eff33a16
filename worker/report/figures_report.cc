#include "worker/report/figures_report.h"

#include <cmath>
#include <utility>

namespace syncgrads {

FiguresReport::FiguresReport(Team& team, absl::string_view device) : team_(team) {
  figures_.device = std::string(device.substr(0, kMaxDeviceBytes));
}

void FiguresReport::Used(const StepUse& use) {
  figures_.times += use.times;
  figures_.learning_rate = use.learning_rate;
}

void FiguresReport::Stepped(uint64_t step, std::optional<double> loss) {
  figures_.step = step;
  // A step without a batch keeps the last loss.
  if (loss.has_value()) figures_.loss = std::isfinite(*loss) ? loss : std::nullopt;
  team_.ReportFigures(figures_);
}

void FiguresReport::Validated(uint64_t step, const Scores& scores) {
  Validation validation{step, {}};
  for (const auto& [name, value] : scores) {
    // The curve of the name "loss" is shown beside that of the training.
    const bool is_loss = name == "val_loss";
    if (std::isfinite(value)) validation.scores.push_back({is_loss ? "loss" : name, value});
  }
  figures_.validation = std::move(validation);
  team_.ReportFigures(figures_);
}

void FiguresReport::Evaluated(absl::string_view rows, const Scores& scores) {
  if (rows == "held_out") Validated(figures_.step, scores);
}

}  // namespace syncgrads
