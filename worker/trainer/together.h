// The mode in which all workers contribute to every step.

#ifndef SYNCGRADS_WORKER_TRAINER_TOGETHER_H_
#define SYNCGRADS_WORKER_TRAINER_TOGETHER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "worker/data/loader.h"
#include "worker/report/team_loss.h"
#include "worker/trainer/checkpoint_keeper.h"
#include "worker/trainer/gradient_engine.h"
#include "worker/trainer/mode.h"
#include "worker/trainer/replica.h"
#include "worker/trainer/training_group.h"
#include "worker/trainer/training_run.h"
#include "worker/trainer/training_state.h"
#include "worker/trainer/validator.h"

namespace syncgrads {

// One step for each batch. Each layer's gradient is pushed when the backward pass has produced it,
// last layer first. The parameters are updated when all results have arrived. If the job allows
// overlap, each parameter is updated when the next step's forward pass needs it: the step before is
// then *unfinished* until its last result has been taken.
//
// A worker whose rows are used up, or that was late under a quorum, follows: it contributes nothing
// and applies every update, so that all replicas end equal.
class Together : public Mode {
 public:
  // The arguments outlive the object. `run.rate` has the base rate.
  Together(TrainingRun& run, Replica& replica, GradientEngine& engine, TrainingGroup& group,
           Validator& validator, TrainingState& state, CheckpointKeeper& keeper);

  absl::Status Run() override;

 private:
  // A step that has been pushed but not completed.
  struct Unfinished {
    std::vector<RowId> rows;
    std::optional<double> loss;
    // By parameter: whether its result has been taken.
    std::vector<bool> taken;
  };

  // Makes steps until the rows of all workers are used up.
  absl::Status MakeSteps();
  // Returns CANCELLED if this worker has been asked to stop; see CheckpointKeeper::Stop.
  absl::Status CheckStop();
  // Makes a step with this worker's next rows. If the members change in the meantime,
  // makes the step again.
  absl::Status TrainStep();
  // Makes a step without a contribution.
  absl::Status FollowStep();

  // Prepares the contribution of a step with `rows`: later pushes belong to it.
  absl::Status BeginContribution(const std::vector<RowId>& rows);
  // Contributes the gradient of `rows`, or nothing if `rows` is empty. Returns the loss,
  // if there is one.
  absl::StatusOr<std::optional<double>> PushBatch(const std::vector<RowId>& rows);
  // Computes the gradient of `rows`, which is not empty, and pushes each parameter's when it is
  // ready, unless the guard must see all of it first. Returns the loss. If there is not enough
  // memory, skips what has not been pushed and returns nullopt.
  absl::StatusOr<std::optional<double>> ComputeAndPush(const std::vector<RowId>& rows);

  // Waits for the results of the step with `rows`, applies them, and completes the step.
  absl::Status FinishStep(const std::vector<RowId>& rows, std::optional<double> loss);
  // Applies the results of `parameters`. `contributors` are by tensor.
  absl::Status UseResults(absl::Span<const size_t> parameters,
                          absl::Span<const Contributors> contributors);
  // Tells the replica where a parameter's result in place lies.
  absl::Status FindGradient(size_t parameter);
  // Does what follows a step: reports, checks, validates, and takes a checkpoint if `is_agreed`.
  absl::Status EndStep(const std::vector<RowId>& rows, std::optional<double> loss, uint64_t made,
                       bool is_agreed);
  // Compares the parameters of all workers, if the job's interval has passed.
  absl::Status CheckReplicas();

  // Overlap (overlap.cc). Whether this job's steps can overlap.
  bool CanOverlap() const;
  // Whether to leave the step that has been pushed unfinished. False if the next step
  // needs it to be completed, or if all results have arrived.
  absl::StatusOr<bool> Overlaps();
  // Called when the forward pass of a step with `rows` needs parameter i. If the step
  // before is unfinished, waits for the parameter's result and applies it.
  absl::Status TakeResult(size_t i, const std::vector<RowId>& rows);
  // If the step before is unfinished, completes it and begins the contribution of the
  // step with `rows`.
  absl::Status FinishBefore(const std::vector<RowId>& rows);
  // Called while the device computes a gradient. If steps can overlap, queues the upload of a
  // result that has arrived. Returns whether there was one.
  absl::StatusOr<bool> UploadArrived();
  // Completes the unfinished step, if there is one.
  absl::Status FinishUnfinished();

  // The number of the step whose gradient is being computed, from 0.
  uint64_t step_under_way() const { return run_.steps + (unfinished_.has_value() ? 1 : 0); }

  TrainingRun& run_;
  Replica& replica_;
  GradientEngine& engine_;
  TrainingGroup& group_;
  Validator& validator_;
  TrainingState& state_;
  CheckpointKeeper& keeper_;
  bool can_overlap_;
  // While the worker trains, if the plan's averages_losses.
  std::optional<TeamLoss> losses_;
  std::optional<Unfinished> unfinished_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_TOGETHER_H_
