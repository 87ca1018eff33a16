// The sizes of a run, which all workers agree on before the first step.

#ifndef SYNCGRADS_WORKER_TRAINER_PLAN_H_
#define SYNCGRADS_WORKER_TRAINER_PLAN_H_

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "worker/batches/batches.h"
#include "worker/team/team.h"
#include "worker/trainer/trainer_options.h"
#include "worker/trainer/training_run.h"

namespace syncgrads {

// Returns how the shards are divided among the workers of a run.
ShardOwners OwnersOf(const v1::JobFile& job, const Team& team, const TrainerOptions& options);

// Sets run.plan, without the number of parameters, run.steps_per_epoch and run.epoch_offset (0 if
// nothing uses them). A collective of `team`, which is a SoleWorker if every worker has all of the
// data.
//
// Errors:
//   FailedPrecondition  no worker has a row to train on
//   others              the team's
absl::Status MakePlan(TrainingRun& run, Team& team);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_PLAN_H_
