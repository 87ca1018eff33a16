// The learning rate schedule of a job file.

#ifndef SYNCGRADS_WORKER_JOB_SCHEDULE_H_
#define SYNCGRADS_WORKER_JOB_SCHEDULE_H_

#include <cstdint>

#include "common/optim/rate_schedule.h"
#include "proto/job.pb.h"

namespace syncgrads {

// Returns whether the schedule has numbers of epochs.
bool CountsEpochs(const v1::LearningRateSchedule& schedule);

// Returns the schedule in steps. `steps_per_epoch` is used only if CountsEpochs.
RateSchedule ScheduleOf(const v1::LearningRateSchedule& schedule, uint64_t steps_per_epoch);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_SCHEDULE_H_
