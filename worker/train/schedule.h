// How the learning rate changes in the course of training.

#ifndef SYNCGRADS_WORKER_TRAIN_SCHEDULE_H_
#define SYNCGRADS_WORKER_TRAIN_SCHEDULE_H_

#include <cstdint>

#include "proto/job.pb.h"

namespace syncgrads {

// What the optimizer's learning rate is multiplied by in step `step`, counted from
// 0, with `workers` workers. A pure function; `schedule` is one that ParseJobFile
// has let pass. See proto/job.proto for the formulas.
double RateFactor(const v1::Schedule& schedule, uint64_t step, uint32_t workers);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_SCHEDULE_H_
