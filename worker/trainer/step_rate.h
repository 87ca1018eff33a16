// The learning rate of an optimizer that runs on the worker.

#ifndef SYNCGRADS_WORKER_TRAINER_STEP_RATE_H_
#define SYNCGRADS_WORKER_TRAINER_STEP_RATE_H_

#include <cstdint>

#include "common/optim/rate_schedule.h"

namespace syncgrads {

// The learning rate of a step is the product of the rate in the job file, the factor of the
// schedule, and two factors that change while the job trains.
struct StepRate {
  // The rate in the job file.
  double base = 0;
  // In steps; set by MakePlan.
  RateSchedule schedule;
  // best_of: the product of the factors that its cycles have applied so far.
  double of_cycles = 1;
  // The job's learning rate factor (Group::learning_rate_factor) in the step of the newest results.
  double of_job = 1;

  // Return the factor of `base`, and the rate, in `step`, counted from 0, with `workers` workers.
  double FactorIn(uint64_t step, uint32_t workers) const {
    return of_cycles * of_job * RateFactor(schedule, step, workers);
  }
  double In(uint64_t step, uint32_t workers) const { return base * FactorIn(step, workers); }
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_STEP_RATE_H_
