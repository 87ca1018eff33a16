#include "worker/train/schedule.h"

#include <algorithm>
#include <cmath>

namespace syncgrads {
namespace {

constexpr double kPi = 3.141592653589793;

// Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts",
// 2017.
double CosineFactor(const v1::CosineSchedule& cosine, uint64_t step) {
  const double cycle = static_cast<double>(step / cosine.cycle_steps());
  const double phase =
      static_cast<double>(step % cosine.cycle_steps()) / static_cast<double>(cosine.cycle_steps());
  const double dampening = cosine.dampening() == 0 ? 1 : cosine.dampening();
  const double peak = std::max(cosine.minimum(), std::pow(dampening, cycle));
  return cosine.minimum() + (peak - cosine.minimum()) * (1 + std::cos(kPi * phase)) / 2;
}

double StepFactor(const v1::StepSchedule& steps, uint64_t step) {
  const auto passed = std::count_if(steps.milestones().begin(), steps.milestones().end(),
                                    [step](uint64_t at) { return step >= at; });
  return std::pow(steps.factor(), static_cast<double>(passed));
}

}  // namespace

double RateFactor(const v1::Schedule& schedule, uint64_t step, uint32_t workers) {
  double factor = schedule.times_workers() ? workers : 1;
  if (step < schedule.warmup_steps()) {
    return factor * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps());
  }
  // The other schedules count from the end of the warm-up.
  const uint64_t since = step - schedule.warmup_steps();
  if (schedule.has_step()) factor *= StepFactor(schedule.step(), since);
  if (schedule.has_cosine()) factor *= CosineFactor(schedule.cosine(), since);
  return factor;
}

}  // namespace syncgrads
