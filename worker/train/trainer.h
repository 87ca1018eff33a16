// One worker's training: batches, gradients, the service, updates.

#ifndef SYNCGRADS_WORKER_TRAIN_TRAINER_H_
#define SYNCGRADS_WORKER_TRAIN_TRAINER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/local_optimizer.h"
#include "proto/job.pb.h"
#include "worker/data/loader.h"
#include "worker/job/job_file.h"
#include "worker/nn/custom_layers.h"
#include "worker/nn/loss.h"
#include "worker/nn/model.h"
#include "worker/train/batch_reader.h"
#include "worker/train/batches.h"
#include "worker/train/data_set.h"
#include "worker/train/event_log.h"
#include "worker/train/progress.h"
#include "worker/train/step_guard.h"
#include "worker/train/team.h"

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
  // Outlives the trainer.
  const CustomLayers* custom_layers = &NoCustomLayers();
};

// Trains the job's model on this worker's rows, in step with the others:
//
//   created   the model has its initial parameters, those of rank 0 everywhere
//   training  a step for each batch: each layer's gradient is pushed when the
//             backward pass has produced it, last layer first; when all results
//             are there, the parameters are updated
//   following this worker's rows are used up, others' are not: it contributes
//             nothing and updates as they do, so that all end equal
//   trained   all workers' rows are used up
//
// In an elastic job a worker may be created while the others train: it then gets
// their parameters, optimizer and position in the data, and goes on with them.
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

  // Errors:
  //   Cancelled          should_stop said so, before a step
  //   DataLoss           replicas differ, where the job has them compared
  //   InvalidArgument    this worker's gradient is no good, and the job says that this
  //                      is an error; or too many steps in a row have been skipped
  //   ResourceExhausted  too many in a row have been skipped for want of memory
  //   others             as the group
  absl::Status Train();

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

 private:
  Trainer(const v1::JobFile& job, const DataSet& data, Team& team, const TrainerOptions& options,
          std::unique_ptr<Batches> batches, std::unique_ptr<Device<T>> device,
          std::unique_ptr<Model<T>> model);

  bool optimizes_on_servers() const { return job_.place() == v1::SERVERS; }
  // What the others have too: the team, or in an elastic job this worker alone, who
  // has all of the data.
  absl::Status MakePlan(Team& team);
  absl::Status Register();
  absl::Status ShareInitialParameters();
  // Of an elastic job: gives or gets what a newcomer needs.
  absl::Status ShareState();
  // Between what the optimizer and the trainer count, and counters_.
  void SaveCounters();
  void RestoreCounters();

  // Where the service writes parameter i's result.
  void* ResultOf(size_t i);

  absl::Status CheckStop() const;
  // A step with this worker's next rows, made again if the members turn out to be
  // others.
  absl::Status TrainStep();
  // Contributes the gradient of `rows`, or nothing if there are none. Returns the
  // loss, if there is one.
  absl::StatusOr<std::optional<double>> PushBatch(const std::vector<RowId>& rows);
  // Sets features_ and targets_ to those of one of `parts` parts of the batch.
  absl::Status ReadPart(const std::vector<RowId>& rows, size_t part, size_t parts);
  // Begins to read this batch, and those after it, where that takes long.
  void ReadAhead(const std::vector<RowId>& rows);
  void BeginParts(uint64_t step, const std::vector<RowId>& rows);
  // Gives up what is being read for the step under way.
  void ForgetParts(const std::vector<RowId>& rows);
  // What the rows' losses are divided by.
  absl::StatusOr<double> DivisorOf(const std::vector<RowId>& rows) const;
  // The same, of rows that are there: the backward pass pushes, unless the whole
  // gradient has to be there first. Adds to `loss`.
  absl::Status ComputeBatch(const std::vector<RowId>& rows, size_t parts, double divisor,
                            double& loss);
  absl::Status PushGradient(size_t i);
  // Of a gradient that is all there: pushes it, or skips the step.
  absl::Status PushOrSkip();
  // Skips the tensors that have not been pushed, since there is no memory `to_do` it.
  absl::Status SkipRest(const std::vector<RowId>& rows, absl::string_view to_do);
  // Takes note of what the servers have left out.
  void NoteLeftOut(absl::Span<const Contributors> contributors);
  // Scales averaged gradients down, if the job says so.
  void ClipGradients(absl::Span<const Contributors> contributors);
  // Compares parameters with the other workers, if it is time.
  absl::Status CheckReplicas();
  // The gradient of parameter i is there, of one of the batch's parts: it is added
  // to those before, or with the last one pushed.
  absl::Status TakeGradient(size_t i, bool first, bool last);
  // As TakeGradient, for all parameters, of a part without a row.
  absl::Status TakeZeros(bool first, bool last);
  absl::Status SkipBatch();
  // Contributes nothing. False if all workers have ended.
  absl::StatusOr<bool> FollowStep();
  // Waits for the step's results and applies them.
  absl::Status FinishStep(const std::vector<RowId>& rows, std::optional<double> loss);

  const v1::JobFile& job_;
  const DataSet& data_;
  Team& team_;
  const TrainerOptions options_;
  const Loss loss_;
  const std::unique_ptr<Batches> batches_;
  std::unique_ptr<BatchReader> reader_;  // of images that take long to read
  const std::unique_ptr<Device<T>> device_;
  const std::unique_ptr<Model<T>> model_;
  TrainingPlan plan_;
  Group* group_ = nullptr;
  std::vector<TensorId> tensors_;  // of model_->parameters()
  // Unless the servers optimize.
  std::optional<LocalOptimizer> optimizer_;
  StepGuard guard_;
  // Of the step under way, by parameter.
  std::vector<bool> pushed_;
  uint64_t steps_ = 0;
  // For newcomers: steps, and updates of each tensor.
  std::vector<int64_t> counters_;

  Matrix<T> features_;
  std::vector<double> targets_;
  Matrix<T> output_gradient_;
  // Of the parts so far; by parameter.
  std::vector<Matrix<T>> accumulated_;
  DamagedImages damaged_;
};

extern template class Trainer<float>;
extern template class Trainer<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_TRAINER_H_
