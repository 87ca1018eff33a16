// Computes the learning rate of each step.

#ifndef SYNCGRADS_WORKER_TRAIN_SCHEDULE_H_
#define SYNCGRADS_WORKER_TRAIN_SCHEDULE_H_

#include <cstdint>

#include "proto/job.pb.h"

namespace syncgrads {

// Returns the factor of the optimizer's learning rate in `step`, which counts from 0,
// with `workers` workers. A pure function. ParseJobFile must have checked `schedule`. See
// proto/job.proto for the formulas.
double RateFactor(const v1::Schedule& schedule, uint64_t step, uint32_t workers);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_SCHEDULE_H_
