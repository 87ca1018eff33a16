#include "server/core/coordinator/training_curves.h"

#include <algorithm>

namespace syncgrads::server {
namespace {

constexpr absl::Duration kInterval = absl::Seconds(1);

}  // namespace

bool TrainingCurves::IsDue(absl::Time now) const { return now - sampled_ >= kInterval; }

void TrainingCurves::Sample(const std::vector<TrainingFigures>& figures, absl::Time now) {
  sampled_ = now;
  SampleLoss(figures, now);
  SampleValidation(figures, now);
}

void TrainingCurves::SampleLoss(const std::vector<TrainingFigures>& figures, absl::Time now) {
  TrainingPoint point{.at = now};
  uint64_t losses = 0;
  for (const TrainingFigures& one : figures) {
    point.step = std::max(point.step, one.step);
    if (!one.loss.has_value()) continue;
    ++losses;
    // The mean so far. A sum could overflow.
    point.loss += (*one.loss - point.loss) / static_cast<double>(losses);
  }
  // While no step is made, the losses do not change.
  if (std::exchange(step_, point.step) == point.step || losses == 0) return;
  training_.Add(point);
}

void TrainingCurves::SampleValidation(const std::vector<TrainingFigures>& figures, absl::Time now) {
  const Validation* newest = nullptr;
  for (const TrainingFigures& one : figures) {
    if (!one.validation.has_value()) continue;
    if (newest == nullptr || one.validation->step > newest->step) newest = &*one.validation;
  }
  if (newest == nullptr || newest->step <= validated_step_) return;
  validated_step_ = newest->step;
  validation_.Add({now, std::make_shared<const Validation>(*newest)});
}

}  // namespace syncgrads::server
