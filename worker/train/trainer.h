// One worker's training: batches, gradients, the service, updates.

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
#include "worker/train/progress.h"
#include "worker/train/resume.h"
#include "worker/train/step_guard.h"
#include "worker/train/team.h"
#include "worker/train/team_exchange.h"

namespace syncgrads {

struct TrainerOptions {
  // For the other workers to finish a step.
  absl::Duration step_timeout = absl::Minutes(5);
  // Asked before each step; may be empty.
  std::function<bool()> should_stop;
  // Outlives the trainer.
  Progress* progress = nullptr;
  // Outlives the trainer; null: none is kept.
  EventLog* event_log = nullptr;
  // Of an elastic job whose workers own shards: whose shards are this worker's.
  std::optional<uint32_t> rank;
  // Of an elastic job: how many workers may own shards.
  uint32_t owners = 0;
  // Is told in words of steps that this worker skips; may be empty.
  std::function<void(const std::string&)> warn;
  // Outlive the trainer.
  const Extensions* extensions = &NoExtensions();
  // Outlives the trainer.
  const Clock* clock = &Clock::Real();
  // Go on from the newest checkpoint, if there is one; see FindResumption.
  bool resume = false;
  // What this worker has of an earlier try at the same run, whose servers have lost
  // theirs. After a try that failed it is what there is now. May be null.
  std::optional<Snapshot>* kept = nullptr;
  // Of a job with checkpoints, whoever will have to write them; outlives the trainer.
  CheckpointWriter* checkpoints = nullptr;
  // What the run goes on from; null: it begins. Its snapshot is given up once it has
  // been taken over.
  Resumption* resumption = nullptr;
  // Takes a line for people; may be empty.
  std::function<void(const std::string&)> note;
  DeviceChoice device;
  // Where this worker's time goes, in its first `trace_steps` steps; outlives the trainer.
  // Null: none is made.
  Trace* trace = nullptr;
  uint64_t trace_steps = 0;
  // Which of the job's initialisations is trained from, from 0: each is a group of its own
  // at the servers.
  uint32_t initialisation = 0;
};

// Trains the job's model on this worker's rows, in step with the others:
//
//   created   the model has its initial parameters, those of rank 0 everywhere
//   training  a step for each batch: each layer's gradient is pushed when the
//             backward pass has produced it, last layer first. Parameters are
//             updated when all results are there, or, where nothing speaks against
//             it, each when its result is there and the next step's forward pass
//             needs it
//   following this worker's rows are used up, others' are not: it contributes
//             nothing and updates as they do, so that all end equal. So does one
//             that was late under a quorum, for the steps that it has missed
//   trained   all workers' rows are used up
//
// In an elastic job a worker may be created while the others train: it then gets
// their parameters, optimizer and position in the data, and goes on with them.
//
// In a job with checkpoints the training group has one more tensor, of one zero. A
// worker that finds a checkpoint due contributes to it, and otherwise skips it: so all
// workers see in the step's answer, and all the same, whether the state after it is
// kept. The worker of rank 0 in that step writes it, in the background. Where a codec
// may have lost something, a checkpoint is announced one step ahead, and the step before
// it goes as it is (Group::SendWhole): there is nothing left over to be saved.
//
// Not thread-safe.
template <typename T>
class Trainer {
 public:
  // Agrees with the others on the plan, registers the model's parameters and gives
  // them their initial values, or what a newcomer is given. A collective. In an
  // elastic job `data` is all of it, as from LoadWholeDataSet. `job`, `data` and
  // `team` outlive the trainer.
  //
  // Errors:
  //   FailedPrecondition  no worker has a row to train on
  //   others              as BuildModel, Safetensors::Read, LoadModel,
  //                       Loader::Create, or as the team
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const Job& job, const DataSet& data,
                                                         Team& team, const TrainerOptions& options);
  // Lets the team go, if training has not come to its end: in a step that failed a
  // chunk can still be answered after another has been refused.
  ~Trainer();

  // Errors:
  //   Cancelled          should_stop said so, before a step
  //   DataLoss           replicas differ, where the job has them compared
  //   InvalidArgument    this worker's gradient is no good, and the job says that this
  //                      is an error; or too many steps in a row have been skipped
  //   ResourceExhausted  too many in a row have been skipped for want of memory
  //   others             as the group
  absl::Status Train();

  // The state after the last step that was made, which stands also after Train has
  // failed; nothing if the servers have a part of it, or the device has failed. Of the
  // states that are each worker's own it has this one's.
  std::optional<Snapshot> KeepState();

  // What it has on the host is what Train has made of it when that has succeeded.
  Model<T>& model() { return *model_; }
  const Loss& loss() const { return loss_; }
  const TrainingPlan& plan() const { return plan_; }
  // Where this worker's images are noted that could not be read; null if the job
  // does not let them be skipped.
  DamagedImages* SkippedImages();
  const DamagedImages& damaged() const { return damaged_; }
  // Steps that have been done.
  uint64_t steps() const { return steps_; }
  // Those that this worker had to skip, in whole or in part.
  const SkippedSteps& skipped() const { return guard_.skipped(); }
  // How often the workers' contributions, or states, were put together.
  uint64_t rounds() const { return rounds_; }

 private:
  Trainer(const v1::JobFile& job, const DataSet& data, Team& team, const TrainerOptions& options,
          Loss loss, std::unique_ptr<Batches> batches, std::unique_ptr<Device<T>> device,
          std::unique_ptr<Model<T>> model);

  bool optimizes_on_servers() const { return job_.place() == v1::SERVERS; }
  bool makes_local_steps() const { return job_.consistency().has_local_steps(); }
  bool competes() const { return job_.consistency().has_best_of(); }
  bool trains_alone() const { return makes_local_steps() || competes(); }
  bool has_parameters_on_servers() const { return optimizes_on_servers() || makes_local_steps(); }
  // Before any of it is pushed or applied.
  bool needs_whole_gradient() const { return guard_.watches_norms() || trains_alone(); }
  // What the others have too: the team, or in an elastic job this worker alone, who
  // has all of the data.
  absl::Status MakePlan(Team& team);
  // Gradients lie where servers on this host can read them, if there is such memory.
  absl::Status ShareGradients();
  absl::Status Register();
  absl::Status ShareInitialParameters();
  // Of an elastic job: gives or gets what a newcomer needs.
  absl::Status ShareState();
  // Takes the place of ShareInitialParameters. A collective.
  absl::Status Restore(Resumption& from);
  // The parts of what a step changes, where they are: the position in the data and
  // the counters; what the optimizer keeps here.
  std::vector<NamedTensor> PositionTensors();
  std::vector<NamedTensor> SlotTensors();
  // A pointer for each of the group's tensors, in the order of registration:
  // ResultOf, or the parameters' values.
  std::vector<void*> Results();
  std::vector<void*> Values();
  // Gives the host what the device has: parameters; all of what is kept or handed on.
  absl::Status FetchValues();
  absl::Status FetchState();
  // Between what the optimizer and the trainer count, and counters_.
  void SaveCounters();
  void RestoreCounters();

  // Where the service writes parameter i's result.
  void* ResultOf(size_t i);

  // The number of the step whose gradient is being computed, from 0.
  uint64_t step_under_way() const { return steps_ + (unfinished_.has_value() ? 1 : 0); }
  // What has been pushed, and results of which the next step's forward pass takes as it
  // needs them.
  struct Unfinished {
    std::vector<RowId> rows;
    std::optional<double> loss;
    std::vector<bool> taken;  // by parameter
  };
  // Whether this job's steps can be like that.
  bool CanOverlap() const;
  // Whether the step that has been pushed is to be; where the next step has to find all of
  // it done, or has nothing to wait for, it is not.
  absl::StatusOr<bool> Overlaps();
  // Parameter i is needed for a step with `rows`: it is what the step before makes of it.
  absl::Status TakeResult(size_t i, const std::vector<RowId>& rows);
  // Waits for all that the step before has not been answered yet, if there is something,
  // and begins the contribution of the step with `rows`.
  absl::Status FinishBefore(const std::vector<RowId>& rows);
  absl::Status FinishUnfinished();
  // From now on it is this step's gradient that is pushed.
  absl::Status BeginContribution(const std::vector<RowId>& rows);

  // CANCELLED if this worker has been told to stop; where checkpoints are kept, not
  // before one more step, whose state is.
  absl::Status CheckStop();
  // Steps, each with what the others contribute, until this worker's rows are used up.
  absl::Status TrainTogether();
  // A step with this worker's next rows, made again if the members turn out to be
  // others.
  absl::Status TrainStep();
  // A step with this worker's next rows and nobody else's; adds them to `rows`.
  absl::Status TrainAlone(std::vector<RowId>& rows);
  // Some steps alone, and a contribution of what they have changed.
  absl::Status TrainCycle();
  // Cycles of steps alone, after each of which the best worker's state is everybody's.
  absl::Status Compete();
  absl::Status TakeBestState();
  // What the best worker gives.
  std::vector<NamedTensor> WholeState();
  // Contributes the gradient of `rows`, or nothing if there are none. Returns the
  // loss, if there is one.
  absl::StatusOr<std::optional<double>> PushBatch(const std::vector<RowId>& rows);
  // The gradient of `rows`, of which there are some; each parameter's is pushed as soon
  // as it is there, unless the whole gradient has to be there first. Returns the loss;
  // none if there was no memory, and what was not pushed has been skipped.
  absl::StatusOr<std::optional<double>> ComputeGradient(const std::vector<RowId>& rows);
  // What the loss has besides the batch's.
  absl::StatusOr<double> FindPenalty();
  // Updates these parameters by the gradients that the host has.
  absl::Status Apply(absl::Span<const size_t> parameters);
  // Makes the results of these parameters, to which so many have contributed, by tensor,
  // what the device computes with.
  absl::Status UseResults(absl::Span<const size_t> parameters,
                          absl::Span<const Contributors> contributors);
  // Applies this worker's own gradient to its parameters, unless it is no good, which
  // false says.
  absl::StatusOr<bool> ApplyAlone();
  // Sets features_ and targets_ to those of one of `parts` parts of the batch.
  absl::Status ReadPart(const std::vector<RowId>& rows, size_t part, size_t parts);
  // The same of the next step's first part, if it has been read, and sends it on its way to
  // a device that computes this step's last.
  void ReadPartAhead();
  // Begins to read this batch, and those after it, where that takes long.
  absl::Status ReadAhead(const std::vector<RowId>& rows);
  absl::Status BeginParts(uint64_t step, const std::vector<RowId>& rows);
  // Gives up what has been read, or is being read, for steps before this one.
  void ForgetPartsBefore(uint64_t step);
  // What the rows' losses are divided by.
  absl::StatusOr<double> DivisorOf(const std::vector<RowId>& rows) const;
  // The same, of rows that are there: the backward pass pushes, unless the whole
  // gradient has to be there first. Adds to `loss`.
  absl::Status ComputeBatch(const std::vector<RowId>& rows, size_t parts, double divisor,
                            double& loss);
  absl::Status PushGradient(size_t i);
  // Of a gradient that is all there: whether it is good enough to be pushed, or applied.
  absl::StatusOr<bool> AdmitGradient();
  // The same: pushes it, or skips the step.
  absl::Status PushOrSkip();
  // Skips the tensors that have not been pushed, since there is no memory `to_do` it.
  absl::Status SkipRest(const std::vector<RowId>& rows, absl::string_view to_do);
  // Takes note of what the servers have left out, if there is something.
  bool NoteLeftOut(absl::Span<const Contributors> contributors);
  // Scales averaged gradients down, if the job says so.
  void ClipGradients(absl::Span<const Contributors> contributors);
  // Compares parameters with the other workers, if it is time.
  absl::Status CheckReplicas();
  // The device is about to have the gradient of parameter i of one of the batch's
  // parts: it is added to those before, or with the last one sent on its way.
  absl::Status TakeGradient(size_t i, bool first, bool last);
  // Pushes the gradients that have come to the host, in the order in which they were
  // taken, unless the whole gradient has to be there first; if `all`, waits for those
  // that have not come.
  absl::Status PushDownloaded(bool all);
  // As TakeGradient, for all parameters, of a part without a row.
  absl::Status TakeZeros(bool first, bool last);
  absl::Status SkipBatch();
  // Contributes nothing. False if all workers have ended.
  absl::StatusOr<bool> FollowStep();
  // Says with the step's contribution whether a checkpoint is due after it.
  absl::Status OfferCheckpoint();
  // Whether one is to be taken after the step that has been made, in which one was `due`
  // or not: in a job that compresses, after the next.
  bool TakesCheckpoint(bool due);
  // One has been agreed upon, on whichever worker.
  void NoteCheckpoint();
  // One is due after the step that has been made. A collective, of this step's
  // members.
  absl::Status TakeCheckpoint(const StepOutcome& outcome);
  // After the last step of all, unless it has been taken. A collective.
  absl::Status KeepLastStep();
  // All workers' states, by rank; none where there are none, or where only those of
  // the worker that writes are kept.
  absl::StatusOr<std::vector<std::string>> GatherStates();
  // Of the rows held out, if that is what tells the best checkpoint.
  absl::StatusOr<std::optional<Evaluation>> EvaluateForCheckpoint(bool writes);
  Snapshot TakeSnapshot(const std::vector<std::string>& states);
  // The root's part of a restored optimizer on the servers.
  absl::StatusOr<OptimizerState> OptimizerStateOf(const Snapshot& snapshot) const;
  TensorSpec SlotSpec(size_t i, int slot) const;
  // Of an optimizer on the servers.
  int ServerSlots() const;
  void Report(const CheckpointOutcome& outcome);
  void ReportCheckpoints();
  void FinishCheckpoints();
  // Null where no trace is made, or no longer.
  Trace* trace();
  // Calls what the program adds after steps; `loss` is this step's.
  absl::Status CallBack(std::optional<double> loss);
  // Waits for the step's results and applies them.
  absl::Status FinishStep(const std::vector<RowId>& rows, std::optional<double> loss);

  const v1::JobFile& job_;
  const DataSet& data_;
  Team& team_;
  const TrainerOptions options_;
  const Loss loss_;
  const std::unique_ptr<Batches> batches_;
  std::unique_ptr<BatchReader<T>> reader_;  // of rows that take long to come
  const std::unique_ptr<Device<T>> device_;
  const std::unique_ptr<Model<T>> model_;
  // Null where there is none that can be shared.
  std::unique_ptr<GradientMemory<T>> gradient_memory_;
  TrainingPlan plan_;
  // With layers that look at the batches of all workers.
  std::optional<TeamExchange> exchange_;
  Group* group_ = nullptr;
  std::vector<TensorId> tensors_;  // of model_->parameters()
  // Of a job with checkpoints: what says that one is due, always 0.
  std::optional<TensorId> due_tensor_;
  T no_due_value_ = 0;
  T* due_value_ = &no_due_value_;  // among the gradients, where these can be shared
  std::optional<CheckpointSchedule> schedule_;
  bool checkpoint_asked_ = false;
  // Of a job that compresses: the step under way goes as it is, so that nothing is left
  // over, and a checkpoint is taken after it.
  bool compresses_ = false;
  bool checkpoint_follows_ = false;
  uint64_t kept_step_ = 0;  // what the last checkpoint, on whichever worker, is of
  // No step follows: one that was due before is waited for.
  bool is_last_ = false;
  bool finished_ = false;
  // Unless the servers optimize.
  std::unique_ptr<ModelOptimizer<T>> optimizer_;
  StepGuard guard_;
  double penalty_ = 0;  // of the step under way
  bool can_overlap_ = false;
  std::optional<Unfinished> unfinished_;
  // Of the step under way, by parameter.
  std::vector<bool> pushed_;
  uint64_t steps_ = 0;
  uint64_t rounds_ = 0;
  // What the learning rate has been multiplied by in a competition.
  double rate_factor_ = 1;
  // For newcomers and checkpoints: steps, and updates of each tensor.
  std::vector<int64_t> counters_;

  // What has been taken before its step has begun: features_ and targets_ are its.
  struct PartAhead {
    uint64_t number;
    absl::Status status;
  };
  std::optional<PartAhead> part_ahead_;
  Matrix<T> features_;
  std::vector<double> targets_;
  // Of the parts so far; by parameter.
  std::vector<DeviceMatrix<T>> accumulated_;
  // Gradients on their way from the device, by the numbers of their parameters.
  std::deque<std::pair<size_t, DeviceMemory::Download>> downloads_;
  // The parameters at the beginning of a cycle.
  std::vector<Matrix<T>> began_with_;
  DamagedImages damaged_;
};

extern template class Trainer<float>;
extern template class Trainer<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_TRAINER_H_
