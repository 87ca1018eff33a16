#include "server/core/coordinator/training_curves.h"

#include <algorithm>
#include <limits>

namespace syncgrads::server {
namespace {

constexpr absl::Duration kInterval = absl::Seconds(1);

}  // namespace

bool TrainingCurves::IsDue(absl::Time now) const { return now - sampled_ >= kInterval; }

void TrainingCurves::Sample(const std::vector<TrainingFigures>& figures, double steps_per_second,
                            absl::Time now) {
  sampled_ = now;
  SampleTraining(figures, steps_per_second, now);
  SampleValidation(figures, now);
}

void TrainingCurves::SampleTraining(const std::vector<TrainingFigures>& figures,
                                    double steps_per_second, absl::Time now) {
  TrainingPoint point{.at = now, .steps_per_second = steps_per_second};
  uint64_t losses = 0;
  for (const TrainingFigures& one : figures) {
    point.step = std::max(point.step, one.step);
    if (!one.loss.has_value()) continue;
    ++losses;
    // The mean so far. A sum could overflow.
    point.loss += (*one.loss - point.loss) / static_cast<double>(losses);
  }
  // While no step is made, the losses do not change. The end of the steps is a point of its own.
  const bool has_new_loss = std::exchange(step_, point.step) != point.step && losses > 0;
  const bool has_rate =
      std::exchange(steps_per_second_, steps_per_second) > 0 || steps_per_second > 0;
  if (!has_new_loss && !has_rate) return;
  if (losses == 0) point.loss = std::numeric_limits<double>::quiet_NaN();
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
