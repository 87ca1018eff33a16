// Trains on one worker: assembles the parts of a trainer, and runs them.

#ifndef SYNCGRADS_WORKER_TRAINER_TRAINER_H_
#define SYNCGRADS_WORKER_TRAINER_TRAINER_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/batches/data_set.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/evaluation/evaluation.h"
#include "worker/job/job_file.h"
#include "worker/report/progress.h"
#include "worker/team/team.h"
#include "worker/train/step_guard.h"
#include "worker/trainer/checkpoint_keeper.h"
#include "worker/trainer/layer_states.h"
#include "worker/trainer/mode.h"
#include "worker/trainer/model_parts.h"
#include "worker/trainer/replica.h"
#include "worker/trainer/solo_steps.h"
#include "worker/trainer/trainer_options.h"
#include "worker/trainer/training_group.h"
#include "worker/trainer/training_run.h"
#include "worker/trainer/training_state.h"
#include "worker/trainer/validator.h"

namespace syncgrads {

// Trains the job's model on this worker's rows, in step with the other workers:
//
//   created   The model has its initial parameters, those of rank 0 on every worker.
//   training  The GradientEngine computes the gradient of this worker's rows; the job's Mode
//             combines it with those of the other workers.
//   following This worker's rows are used up, but not those of all workers. It
//             contributes nothing and applies every update, so that all replicas end
//             equal. A worker that was late under a quorum does the same for the steps
//             that it missed.
//   trained   The rows of all workers are used up.
//
// Elastic jobs only: a worker may be created while the others train. It receives their
// parameters, optimizer state and data position, and continues from there.
//
// The worker's thread creates it, calls all methods and destroys it. Not thread-safe.
class Trainer {
 public:
  // Agrees with the other workers on the plan, registers the model's parameters, and sets
  // them: to their initial values, to the resumed state, or, for a newcomer, to the state
  // of the others. A collective. If the job reads all data on every worker, `data` comes
  // from LoadWholeDataSet. `job`, `data` and `team` outlive the trainer.
  //
  // Errors:
  //   FailedPrecondition  no worker has a row to train on
  //   InvalidArgument     the options have an event log, but the job has random_restarts or best_of
  //   others              the errors of BuildModel, Safetensors::Read, LoadModel,
  //                       MakeBatches, or the team's
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const Job& job, const DataSet& data,
                                                         Team& team, const TrainerOptions& options);
  // Leaves the team if training has not ended, because after a step that failed, a result
  // can still arrive in this object's memory.
  ~Trainer();

  // Trains until the rows of all workers are used up.
  //
  // Errors:
  //   Cancelled          should_stop returned true before a step
  //   DataLoss           replicas differ, if the job compares them
  //   InvalidArgument    this worker's gradient is unusable and the job's policy is to reject
  //                      it; or too many steps in a row were skipped
  //   ResourceExhausted  too many steps in a row were skipped, for lack of memory
  //   others             the errors of Group
  absl::Status Train();

  // Returns the state after the last step that was completed, also after Train has
  // failed. It has the layer states of this worker, which differ between workers. nullopt
  // if the servers have a part of the state, if the job has best_of, or if the device has
  // failed.
  std::optional<Snapshot> KeepState();

  // The trained model. Its layer states are the mean over the workers. Its values on the host are
  // valid after Train has succeeded.
  Replica& replica() { return *parts_.replica; }
  // The last validation; nullopt if the job has none.
  const std::optional<Evaluation>& validation() const { return validator_->last(); }
  const TrainingPlan& plan() const { return run_.plan; }
  // Returns the object that collects the errors of images that cannot be read; null if the job's
  // policy is not to skip such images.
  DamagedImages* SkippedImages() { return run_.skipped_images(); }
  const DamagedImages& damaged() const { return run_.damaged; }
  // The number of steps that have been made.
  uint64_t steps() const { return run_.steps; }
  // The steps that this worker had to skip, in whole or in part.
  const SkippedSteps& skipped() const { return run_.guard.skipped(); }
  // How often contributions, or states, of the workers have been combined.
  uint64_t rounds() const { return run_.rounds; }

 private:
  Trainer(const v1::JobFile& job, const DataSet& data, Team& team, const TrainerOptions& options,
          std::unique_ptr<Batches> batches);

  bool competes() const { return run_.job.consistency().has_best_of(); }
  // Creates the parts that do not depend on the numbers' type. A collective.
  absl::Status Assemble();
  // Moves the gradients to memory that servers on this host can read, if there is any.
  absl::Status ShareGradients();
  // Sets the state of all workers and servers before the first step. A collective.
  absl::Status ShareState();
  // Sets the parameters on all workers and servers to those of rank 0.
  absl::Status ShareInitialParameters();

  const TrainerOptions options_;
  TrainingRun run_;
  ModelParts parts_;
  std::optional<LayerStates> states_;
  std::optional<Validator> validator_;
  std::optional<TrainingState> state_;
  // Null in jobs with best_of: nothing is pushed.
  std::unique_ptr<TrainingGroup> group_;
  std::optional<CheckpointKeeper> keeper_;
  // Only if the job's mode makes steps alone.
  std::optional<SoloSteps> solo_;
  std::unique_ptr<Mode> mode_;
  bool finished_ = false;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_TRAINER_H_
