// Trains on one worker: reads batches, computes and pushes gradients, applies updates.

#ifndef SYNCGRADS_WORKER_TRAIN_TRAINER_H_
#define SYNCGRADS_WORKER_TRAIN_TRAINER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "common/clock.h"
#include "common/optim/rate_schedule.h"
#include "proto/job.pb.h"
#include "worker/base/trace.h"
#include "worker/checkpoint/checkpoint_schedule.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/data/loader.h"
#include "worker/job/job_file.h"
#include "worker/nn/loss.h"
#include "worker/nn/model.h"
#include "worker/train/batch_reader.h"
#include "worker/train/batches.h"
#include "worker/train/compute.h"
#include "worker/train/data_set.h"
#include "worker/train/evaluation.h"
#include "worker/train/event_log.h"
#include "worker/train/extensions.h"
#include "worker/train/gradient_memory.h"
#include "worker/train/model_optimizer.h"
#include "worker/train/phase_clock.h"
#include "worker/train/progress.h"
#include "worker/train/resume.h"
#include "worker/train/step_guard.h"
#include "worker/train/team.h"
#include "worker/train/team_exchange.h"
#include "worker/train/validation.h"

namespace syncgrads {

// The settings of a Trainer. Pointers are not owned; unless noted, they outlive the
// trainer.
struct TrainerOptions {
  // How long to wait for the other workers in each step.
  absl::Duration step_timeout = absl::Minutes(5);
  // Called before each step; training stops if it returns true. May be empty.
  std::function<bool()> should_stop;
  // Receives the progress of the run.
  Progress* progress = nullptr;
  // Null: no event log is written.
  EventLog* event_log = nullptr;
  // The data of `validation.data` (LoadValidationData). Null: the validation evaluates the held-out
  // rows of the training data.
  const DataSet* validation = nullptr;
  // Data mode SHARDS, in jobs in which every worker reads all data: the rank whose shards
  // this worker uses.
  std::optional<uint32_t> rank;
  // Elastic jobs only: the number of workers among which the shards are divided.
  uint32_t owners = 0;
  // Called with a message about a step that this worker skips. May be empty.
  std::function<void(const std::string&)> warn;
  // Layers, losses, readers and callbacks that the program adds.
  const Extensions* extensions = &NoExtensions();
  // The clock for the schedule of checkpoints.
  const Clock* clock = &Clock::Real();
  // Whether to resume from the newest checkpoint, if there is one; see FindResumption.
  bool resume = false;
  // The state that this worker has kept from an earlier attempt at the same run, after
  // the servers lost theirs. If an attempt fails, the state is stored here. May be null.
  std::optional<Snapshot>* kept = nullptr;
  // Jobs with checkpoints only, on every worker: writes the checkpoints of this worker. If
  // it is null, RunTraining and RunElasticTraining make one.
  CheckpointWriter* checkpoints = nullptr;
  // The state from which the run resumes; null: it starts from the beginning. Create
  // frees its snapshot when it has restored the state.
  Resumption* resumption = nullptr;
  // Called with a line for people to read. May be empty.
  std::function<void(const std::string&)> note;
  DeviceChoice device;
  // Records where this worker's time goes in its first `trace_steps` steps. Null: no
  // trace.
  Trace* trace = nullptr;
  uint64_t trace_steps = 0;
  // Which of the job's initialisations, from 0, is trained. Each has its own group on the
  // servers.
  uint32_t initialisation = 0;
};

// Trains the job's model on this worker's rows, in step with the other workers:
//
//   created   The model has its initial parameters, those of rank 0 on every worker.
//   training  One step for each batch. Each layer's gradient is pushed when the backward
//             pass has produced it, last layer first. Parameters are updated when all
//             results have arrived. If the job allows overlap, each parameter is updated
//             when the next step's forward pass needs it.
//   following This worker's rows are used up, but not those of all workers. It
//             contributes nothing and applies every update, so that all replicas end
//             equal. A worker that was late under a quorum does the same for the steps
//             that it missed.
//   trained   The rows of all workers are used up.
//
// Elastic jobs only: a worker may be created while the others train. It receives their
// parameters, optimizer state and data position, and continues from there.
//
// Jobs with checkpoints only: the training group has one more tensor, a single zero. A
// worker that finds a checkpoint due contributes to it; otherwise it skips it. All
// workers receive the number of its contributors with the step's results: if it is not 0,
// the state after the step is saved. The worker that has rank 0 in that step writes the
// checkpoint in the background. If a codec is lossy, a checkpoint is announced one step
// ahead, and the step before the checkpoint is sent uncompressed (Group::SendUncompressed), so
// that there is no compression error to be saved.
//
// Jobs with a validation only: after the steps in which it is due, all workers evaluate the model
// together before the next step begins. They reach the same figures, and so the same decision about
// ending the training early. The members of an elastic job evaluate separately.
//
// The worker's thread creates it, calls all methods and destroys it. Not thread-safe.
template <typename T>
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

  // The last validation; nullopt if the job has none.
  const std::optional<Evaluation>& validation() const { return validation_; }

  // The trained model. Its layer states are the mean over the workers. Its values on the host are
  // valid after Train has succeeded.
  Model<T>& model() { return *model_; }
  const Loss& loss() const { return loss_; }
  const TrainingPlan& plan() const { return plan_; }
  // Returns the object that collects the errors of images that cannot be read; null if the job's
  // policy is not to skip such images.
  DamagedImages* SkippedImages();
  const DamagedImages& damaged() const { return damaged_; }
  // The number of steps that have been made.
  uint64_t steps() const { return steps_; }
  // The steps that this worker had to skip, in whole or in part.
  const SkippedSteps& skipped() const { return guard_.skipped(); }
  // How often contributions, or states, of the workers have been combined.
  uint64_t rounds() const { return rounds_; }

 private:
  Trainer(const v1::JobFile& job, const DataSet& data, Team& team, const TrainerOptions& options,
          Loss loss, std::unique_ptr<Batches> batches, std::unique_ptr<Device<T>> device,
          std::unique_ptr<Model<T>> model);

  bool optimizes_on_servers() const { return job_.optimizer_placement() == v1::SERVERS; }
  bool makes_local_steps() const { return job_.consistency().has_local_steps(); }
  bool competes() const { return job_.consistency().has_best_of(); }
  // Whether this worker updates its own parameters between two synchronisations.
  bool trains_alone() const { return makes_local_steps() || competes(); }
  bool has_parameters_on_servers() const { return optimizes_on_servers() || makes_local_steps(); }
  // Whether the whole gradient must be known before any of it is pushed or applied.
  bool needs_whole_gradient() const { return guard_.watches_norms() || trains_alone(); }
  // Fills in plan_, which is the same on all workers. `team` is a SoleWorker if every
  // worker has all of the data.
  absl::Status MakePlan(Team& team);
  // The number of steps of an epoch; in a job in which every worker has all rows, of any of them.
  uint64_t StepsPerEpoch() const;
  // Moves the gradients to memory that servers on this host can read, if there is any.
  absl::Status ShareGradients();
  // Registers the training group and creates the optimizer, if it runs on this worker.
  absl::Status Register();
  // Sets the parameters on all workers and servers to those of rank 0.
  absl::Status ShareInitialParameters();
  // Elastic jobs only: registers the state that a newcomer needs, and receives it if this
  // worker is a newcomer.
  absl::Status ShareState();
  // Restores the state in `from` on all workers; replaces ShareInitialParameters. A
  // collective.
  absl::Status Restore(Resumption& from);
  // Tensors that point to the state that a step changes: PositionTensors has the data
  // position and the counters, SlotTensors has the slots of an optimizer on this worker.
  std::vector<NamedTensor> PositionTensors();
  std::vector<NamedTensor> SlotTensors();
  // Return a pointer for each tensor of the group, in the order of registration: Results
  // to where its result is written (ResultOf), Values to the parameter's values.
  std::vector<void*> Results();
  std::vector<void*> Values();
  // Wait until the host has the device's state: FetchValues the parameters, FetchState
  // also the optimizer's slots and the layer states.
  absl::Status FetchValues();
  absl::Status FetchState();
  // Copy the counts of the optimizer and of this object to counters_, and back.
  void SaveCounters();
  void RestoreCounters();

  // Returns where the client writes the result of parameter i.
  void* ResultOf(size_t i);

  // The number of the step whose gradient is being computed, from 0.
  uint64_t step_under_way() const { return steps_ + (unfinished_.has_value() ? 1 : 0); }
  // A step that has been pushed but not completed. The next step's forward pass takes
  // each result when it needs the parameter.
  struct Unfinished {
    std::vector<RowId> rows;
    std::optional<double> loss;
    // By parameter: whether its result has been taken.
    std::vector<bool> taken;
  };
  // Whether this job's steps can overlap in this way.
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
  // Completes the unfinished step, if there is one.
  absl::Status FinishUnfinished();
  // Prepares the contribution of a step with `rows`: later pushes belong to it.
  absl::Status BeginContribution(const std::vector<RowId>& rows);

  // Returns CANCELLED if this worker has been asked to stop. Jobs with checkpoints only:
  // lets one more step be made first, after which a checkpoint is taken, unless
  // OthersHaveStopped.
  absl::Status CheckStop();
  // Whether another worker seems to have been stopped just before this one, after the last
  // checkpoint: it is recent, and fewer workers contribute since. A run that is resumed from
  // that checkpoint ends like an undisturbed one. The steps since then lack the contributions
  // of the stopped worker. Always false in an elastic job, which continues without a worker.
  absl::StatusOr<bool> OthersHaveStopped();
  // Makes steps together with the other workers, until all workers' rows are used up.
  absl::Status TrainTogether();
  // Makes a step with this worker's next rows. If the members change in the meantime,
  // makes the step again.
  absl::Status TrainStep();
  // Makes a step with this worker's next rows, without the other workers. Adds the rows
  // to `rows` if the gradient was applied.
  absl::Status TrainAlone(std::vector<RowId>& rows);
  // Makes the local steps of one cycle, and contributes the change of the parameters.
  absl::Status TrainCycle();
  // best_of: makes cycles of steps alone. After each cycle all workers take the best
  // worker's state.
  absl::Status Compete();
  // Evaluates this worker's model, and takes the state of the worker with the least loss.
  // A collective.
  absl::Status TakeBestState();
  // Returns everything that the best worker broadcasts: counters, parameters, optimizer
  // slots and layer states.
  std::vector<NamedTensor> WholeState();
  // Contributes the gradient of `rows`, or nothing if `rows` is empty. Returns the loss,
  // if there is one.
  absl::StatusOr<std::optional<double>> PushBatch(const std::vector<RowId>& rows);
  // Computes the gradient of `rows`, which is not empty. Pushes each parameter's gradient
  // when it is ready, unless needs_whole_gradient. Returns the loss. If there is not
  // enough memory, skips what has not been pushed and returns nullopt.
  absl::StatusOr<std::optional<double>> ComputeGradient(const std::vector<RowId>& rows);
  // Returns the part of the loss that does not depend on the batch: the l2 penalty.
  absl::StatusOr<double> FindPenalty();
  // Updates `parameters` with the gradients on the host.
  absl::Status Apply(absl::Span<const size_t> parameters);
  // Applies the results of `parameters` to the device's values. `contributors` are by
  // tensor.
  absl::Status UseResults(absl::Span<const size_t> parameters,
                          absl::Span<const Contributors> contributors);
  // Applies this worker's own gradient to its parameters. Returns false, without applying
  // it, if the gradient is unusable.
  absl::StatusOr<bool> ApplyAlone();
  // Sets features_ and targets_ to the rows of one of `parts` parts of the batch.
  absl::Status ReadPart(const std::vector<RowId>& rows, size_t part, size_t parts);
  // If the first part of the next step's batch has been read, sets features_ and targets_
  // to it, and starts its upload while the device computes this step's last part.
  void ReadPartAhead();
  // Starts to read this batch and the following ones, if the job reads ahead.
  absl::Status ReadAhead(const std::vector<RowId>& rows);
  // Starts to read the parts of the batch of `step`.
  absl::Status BeginParts(uint64_t step, const std::vector<RowId>& rows);
  // Discards the batches of steps before `step` that have been read or are being read.
  void ForgetPartsBefore(uint64_t step);
  // Returns the number by which the sum of the losses of `rows` is divided.
  absl::StatusOr<double> DivisorOf(const std::vector<RowId>& rows) const;
  // Computes the gradient of `rows` in `parts` parts, and queues its download after the
  // last part. Adds the losses, divided by `divisor`, to `loss`. Does not handle a lack
  // of memory.
  absl::Status ComputeBatch(const std::vector<RowId>& rows, size_t parts, double divisor,
                            double& loss);
  // Pushes the gradient of parameter i, which is on the host.
  absl::Status PushGradient(size_t i);
  // Returns whether the whole gradient, which is on the host, may be pushed or applied.
  absl::StatusOr<bool> AdmitGradient();
  // Pushes the whole gradient if AdmitGradient allows it; otherwise skips the step.
  absl::Status PushOrSkip();
  // Skips the tensors that have not been pushed, for lack of memory. `to_do` says what it
  // was for: "to compute its gradient".
  absl::Status SkipRest(const std::vector<RowId>& rows, absl::string_view to_do);
  // Notes what the servers have left out of this worker's contribution. Returns whether
  // there was anything.
  bool NoteLeftOut(absl::Span<const Contributors> contributors);
  // Scales the averaged gradients down to the job's clip_norm, if it is set.
  void ClipGradients(absl::Span<const Contributors> contributors);
  // Compares the parameters of all workers, if the job's interval has passed.
  absl::Status CheckReplicas();
  // Called when the device has queued the gradient of parameter i of one part of the
  // batch. Adds it to those of the parts before. After the last part, queues its
  // download.
  absl::Status TakeGradient(size_t i, bool first, bool last);
  // Pushes the gradients that have been downloaded, in the order of TakeGradient, unless
  // needs_whole_gradient. If `all`, waits for the others too.
  absl::Status PushDownloaded(bool all);
  // Calls TakeGradient with zeros for all parameters, for a part without rows.
  absl::Status TakeZeros(bool first, bool last);
  // Contributes nothing to the step, and requests its results.
  absl::Status SkipBatch();
  // Makes a step without a contribution. Returns false if all workers have ended.
  absl::StatusOr<bool> FollowStep();
  // Contributes to the due tensor if a checkpoint is due after this step; otherwise skips
  // it.
  absl::Status OfferCheckpoint();
  // Returns whether to take a checkpoint after the step just made. `due`: a worker found
  // one due in it. If the job compresses, a due checkpoint is taken after the next step
  // instead.
  bool TakesCheckpoint(bool due);
  // Called when the workers have agreed on a checkpoint: restarts the schedule and drops
  // pending requests.
  void NoteCheckpoint();
  // Takes a checkpoint after the step just made. A collective of this step's members.
  absl::Status TakeCheckpoint(const StepOutcome& outcome);
  // Starts to write the state on the host; only on the worker that writes. `scheduled`: nobody
  // requested this checkpoint. `states` are those of GatherStates.
  absl::Status BeginCheckpoint(const StepOutcome& outcome, bool scheduled,
                               const std::vector<std::string>& states,
                               const std::optional<Evaluation>& evaluation);
  // Takes a checkpoint after the last step, unless it has been taken. A collective.
  absl::Status KeepLastStep();
  // Returns the bytes of this worker's layer states on the host.
  std::string OwnStates() const;
  // Returns OwnStates of all workers, by rank, each with one more number, its recency. Empty if the
  // model has none, or if the job is elastic: then only those of the worker that writes are saved.
  absl::StatusOr<std::vector<std::string>> GatherStates();
  // Sets the layer states to the mean over the workers whose states are the most recent. `states`
  // are those of GatherStates.
  void UseMeanStates(const std::vector<std::string>& states);
  // Sets the layer states to those of OwnStates.
  absl::Status UseStates(const std::string& own);
  // Sets the layer states to the mean over the workers, for good. A collective, except in elastic
  // jobs and with best_of.
  absl::Status UseFinalStates();
  // Whether a checkpoint is taken after each validation that is the best so far.
  bool KeepsBest() const {
    return validations_.has_value() && job_.checkpoint().best() != v1::Checkpoint::NONE;
  }
  // Whether the model is validated after `step`.
  bool IsValidationDue(uint64_t step) const;
  // Validates the model after the step just made. A collective, except in elastic jobs.
  absl::Status Validate();
  absl::StatusOr<Evaluation> EvaluateValidationRows();
  // Validates the model after the last step, unless this has been done.
  absl::Status ValidateLastStep();
  // Elastic jobs only: reports the members of the last validation that are no longer members.
  void NoteLostInValidation(const StepOutcome& outcome);
  // Returns what determines the best checkpoint: the validation after this step, if the job has
  // validations and there was one; or, in a job without them, an evaluation of the held-out rows.
  // `writes`: whether this worker writes the checkpoint.
  absl::StatusOr<std::optional<Evaluation>> EvaluateForCheckpoint(bool writes);
  // Copies the state on the host. `states` are those of GatherStates.
  Snapshot TakeSnapshot(const std::vector<std::string>& states);
  // Returns the optimizer's state on the servers from a snapshot. Called on the root
  // only.
  absl::StatusOr<OptimizerState> OptimizerStateOf(const Snapshot& snapshot) const;
  // Returns the tensor that a slot of parameter i has in a snapshot.
  TensorSpec SlotSpec(size_t i, int slot) const;
  // The number of slots of an optimizer on the servers.
  int ServerSlots() const;
  // Reports the outcome of a checkpoint to people, to the servers and to the event log.
  void Report(const CheckpointOutcome& outcome);
  // Reports the outcomes that have arrived.
  void ReportCheckpoints();
  // Waits for the checkpoint that is being written, and reports it.
  void FinishCheckpoints();
  // Null if there is no trace, or if its steps have passed.
  Trace* trace();
  // Reports the step that was just made. `rows` is the size of this worker's batch, and `loss` its
  // loss.
  void ReportStep(size_t rows, std::optional<double> loss);
  // Calls the program's callbacks after a step. `loss` is that of the step.
  absl::Status CallBack(std::optional<double> loss);
  // Waits for the results of the step with `rows`, applies them, and completes the step.
  absl::Status FinishStep(const std::vector<RowId>& rows, std::optional<double> loss);

  const v1::JobFile& job_;
  const DataSet& data_;
  Team& team_;
  const TrainerOptions options_;
  const Loss loss_;
  const std::unique_ptr<Batches> batches_;
  // Null if rows are read without reading ahead.
  std::unique_ptr<BatchReader<T>> reader_;
  const std::unique_ptr<Device<T>> device_;
  const std::unique_ptr<Model<T>> model_;
  // Null if there is no memory that can be shared.
  std::unique_ptr<GradientMemory<T>> gradient_memory_;
  TrainingPlan plan_;
  // Only if the model has layers that use the batches of all workers.
  std::optional<TeamExchange> exchange_;
  Group* group_ = nullptr;
  std::vector<TensorId> tensors_;  // by parameter
  // By parameter: names in traces.
  std::vector<const char*> push_names_, wait_names_;
  // Jobs with checkpoints only: the tensor to which a worker contributes if a checkpoint
  // is due. Its value is always 0.
  std::optional<TensorId> due_tensor_;
  T no_due_value_ = 0;
  // Points into gradient_memory_ if there is one.
  T* due_value_ = &no_due_value_;
  std::optional<CheckpointSchedule> schedule_;
  // A checkpoint has been requested and not yet taken.
  bool checkpoint_requested_ = false;
  // Whether the group has a codec.
  bool compresses_ = false;
  // Jobs that compress only: the step in progress is sent uncompressed, and a checkpoint
  // is taken after it.
  bool checkpoint_follows_ = false;
  uint64_t kept_step_ = 0;  // step of the last checkpoint, whichever worker wrote it
  // The number of workers that contributed to the step of the last checkpoint, and the time of
  // that checkpoint. 0: this run has taken none.
  size_t kept_contributors_ = 0;
  absl::Time kept_at_;
  // No step follows. A due checkpoint waits for the one that is being written.
  bool is_last_ = false;
  bool finished_ = false;
  // Null if the optimizer runs on the servers.
  std::unique_ptr<ModelOptimizer<T>> optimizer_;
  StepGuard guard_;
  // Set if the job has validations.
  std::optional<ValidationSchedule> validations_;
  ValidationRecord record_;
  std::optional<Evaluation> validation_;
  // The number of the last step in which this worker had a batch, since it was started.
  uint64_t last_batch_ = 0;
  // Elastic jobs only: the members at the last validation, until one of them is gone.
  std::vector<std::string> validated_with_;
  // The validations have ended the training.
  bool stops_early_ = false;
  double penalty_ = 0;  // of the step in progress
  bool can_overlap_ = false;
  std::optional<Unfinished> unfinished_;
  // By parameter: whether its gradient has been pushed in the step in progress.
  std::vector<bool> pushed_;
  uint64_t steps_ = 0;
  uint64_t rounds_ = 0;
  // The times since the last step that was reported.
  PhaseClock phases_;
  // The learning rate in the job file, which `rate_schedule_` multiplies.
  double base_rate_ = 0;
  const RateSchedule rate_schedule_;
  // best_of: the product of the factors applied to the learning rate so far.
  double rate_factor_ = 1;
  // The job's learning rate factor (Group::learning_rate_factor) in the step of the newest results.
  double job_factor_ = 1;
  // For newcomers and checkpoints: the number of steps, then each tensor's number of
  // updates.
  std::vector<int64_t> counters_;

  // The part that ReadPartAhead has read into features_ and targets_: its number in
  // reader_, and the result of reading it.
  struct PartAhead {
    uint64_t number;
    absl::Status status;
  };
  std::optional<PartAhead> part_ahead_;
  Matrix<T> features_;
  std::vector<double> targets_;
  // By parameter: the sum of the gradients of the parts so far.
  std::vector<DeviceMatrix<T>> accumulated_;
  // Downloads of gradients in flight, with the numbers of their parameters.
  std::deque<std::pair<size_t, DeviceMemory::Download>> downloads_;
  // The parameters at the start of a cycle.
  std::vector<Matrix<T>> began_with_;
  DamagedImages damaged_;
};

extern template class Trainer<float>;
extern template class Trainer<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_TRAINER_H_
