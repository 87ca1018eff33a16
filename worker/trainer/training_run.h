// What the parts of a trainer share: the job, the other workers, and how far the run has come.

#ifndef SYNCGRADS_WORKER_TRAINER_TRAINING_RUN_H_
#define SYNCGRADS_WORKER_TRAINER_TRAINING_RUN_H_

#include <cstdint>
#include <memory>

#include "proto/job.pb.h"
#include "worker/base/trace.h"
#include "worker/batches/batches.h"
#include "worker/batches/data_set.h"
#include "worker/report/phase_clock.h"
#include "worker/report/progress.h"
#include "worker/team/team.h"
#include "worker/train/step_guard.h"
#include "worker/trainer/step_rate.h"
#include "worker/trainer/trainer_options.h"

namespace syncgrads {

// The Trainer owns one; its parts refer to it. References are to objects that outlive it. Not
// thread-safe.
struct TrainingRun {
  TrainingRun(const v1::JobFile& job, const DataSet& data, Team& team,
              const TrainerOptions& options, std::unique_ptr<Batches> batches);

  const v1::JobFile& job;
  const DataSet& data;
  Team& team;
  const TrainerOptions& options;
  // This worker's rows.
  const std::unique_ptr<Batches> batches;
  // The sizes of the run, and the number of steps of an epoch; see MakePlan.
  TrainingPlan plan;
  uint64_t steps_per_epoch = 0;
  // Epoch E ends after step E * steps_per_epoch - epoch_offset. Not 0 if the run was resumed, and
  // the steps before had other numbers of rows.
  int64_t epoch_offset = 0;

  // The number of steps that have been made.
  uint64_t steps = 0;
  // How often contributions, or states, of the workers have been combined.
  uint64_t rounds = 0;
  StepRate rate;
  StepGuard guard;
  // The times since the last step that was reported.
  PhaseClock phases;
  // This worker's images that could not be read.
  DamagedImages damaged;

  bool optimizes_on_servers() const { return job.optimizer_placement() == v1::SERVERS; }
  // Whether the servers have the parameters: the results of a step are parameters, not gradients.
  bool has_parameters_on_servers() const {
    return optimizes_on_servers() || job.consistency().has_local_steps();
  }
  bool stop_is_requested() const { return options.should_stop && options.should_stop(); }
  // Returns `damaged`; null if the job's policy is not to skip such images.
  DamagedImages* skipped_images();
  // The trace of `step`, counted from 0. Null if there is no trace, or if its steps have passed.
  Trace* trace(uint64_t step) const { return step < options.trace_steps ? options.trace : nullptr; }
};

// Returns the gradient checks' policy for a bad gradient. ParseJobFile has checked the value.
OnBad OnBadOf(v1::OnBad proto);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_TRAINING_RUN_H_
