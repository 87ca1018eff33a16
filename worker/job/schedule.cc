#include "worker/job/schedule.h"

#include <algorithm>
#include <cmath>

namespace syncgrads {
namespace {

// Returns `steps`, or if it is 0 and `epochs` is not, the steps of these epochs.
uint64_t StepsOf(uint64_t steps, double epochs, uint64_t steps_per_epoch) {
  if (steps != 0 || epochs == 0) return steps;
  return static_cast<uint64_t>(
      std::max(1.0, std::round(epochs * static_cast<double>(steps_per_epoch))));
}

}  // namespace

bool CountsEpochs(const v1::LearningRateSchedule& schedule) {
  return schedule.warmup_epochs() != 0 || !schedule.step().milestone_epochs().empty() ||
         schedule.cosine().cycle_epochs() != 0;
}

RateSchedule ScheduleOf(const v1::LearningRateSchedule& schedule, uint64_t steps_per_epoch) {
  RateSchedule result;
  result.warmup_steps = StepsOf(schedule.warmup_steps(), schedule.warmup_epochs(), steps_per_epoch);
  result.times_workers = schedule.times_workers();
  if (schedule.has_step()) {
    const v1::LearningRateSchedule::Step& step = schedule.step();
    StepDecay decay{{step.milestones().begin(), step.milestones().end()}, step.factor()};
    for (const double epochs : step.milestone_epochs()) {
      decay.milestones.push_back(StepsOf(0, epochs, steps_per_epoch));
    }
    result.decay = decay;
  } else if (schedule.has_cosine()) {
    const v1::LearningRateSchedule::Cosine& cosine = schedule.cosine();
    result.decay =
        CosineDecay{StepsOf(cosine.cycle_steps(), cosine.cycle_epochs(), steps_per_epoch),
                    cosine.minimum(), cosine.dampening() == 0 ? 1 : cosine.dampening()};
  }
  return result;
}

}  // namespace syncgrads
