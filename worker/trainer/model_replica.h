// The replica of a model with numbers of one type.

#ifndef SYNCGRADS_WORKER_TRAINER_MODEL_REPLICA_H_
#define SYNCGRADS_WORKER_TRAINER_MODEL_REPLICA_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "client/client.h"
#include "worker/nn/device.h"
#include "worker/nn/loss.h"
#include "worker/nn/models/model.h"
#include "worker/train/gradient_memory.h"
#include "worker/train/model_optimizer.h"
#include "worker/train/parameter_average.h"
#include "worker/train/pinned_results.h"
#include "worker/trainer/replica.h"
#include "worker/trainer/training_run.h"

namespace syncgrads {

// T is float or double.
template <typename T>
class ModelReplica final : public Replica {
 public:
  // `run` outlives it. `model` computes on `device`. `factors` are those of the parameters that are
  // trained; empty if all are 1.
  ModelReplica(const TrainingRun& run, std::unique_ptr<Device<T>> device,
               std::unique_ptr<Model<T>> model, Loss loss, std::vector<TensorFactors> factors);

  // Creates the moving averages that the job has. Errors: those of ParameterAverage::Create.
  absl::Status CreateAverage();

  Model<T>& model() { return *model_; }
  Device<T>& device() { return *device_; }
  const Loss& loss() const { return loss_; }

  absl::Status ShareGradients(Team& team) override;
  absl::Status CreateOptimizer(const Optimizer& rule) override;
  bool has_optimizer() const override { return optimizer_ != nullptr; }
  absl::Status Apply(absl::Span<const size_t> parameters, double rate_factor) override;
  bool takes_pieces() const override { return optimizer_ != nullptr && optimizer_->takes_pieces(); }
  void SetGradient(size_t parameter, std::vector<absl::Span<const std::byte>> pieces) override;
  void UseResultsOf(const Group& group) override {
    results_ = std::make_unique<PinnedResults>(device_->memory(), group);
  }
  uint64_t updates(size_t parameter) const override;
  void set_updates(size_t parameter, uint64_t updates) override;
  bool uploads_gradients() const override {
    return optimizer_ != nullptr && optimizer_->uploads_gradients();
  }
  void UploadGradient(size_t parameter) override { optimizer_->UploadGradient(parameter); }
  bool is_uploaded(size_t parameter) const override { return optimizer_->is_uploaded(parameter); }
  void ForgetGradient(size_t parameter) override {
    if (optimizer_ != nullptr) optimizer_->ForgetGradient(parameter);
  }
  bool Keep(size_t parameter) override;
  void Undo() override;
  void ForgetKept() override;
  void BeginFetch() override;
  absl::Status Fetch(ReplicaPart part) override;
  void Upload(absl::Span<const size_t> parameters) override;
  void UploadStates() override;
  absl::Status UploadAll() override;
  absl::Status Finish() override;
  absl::Status status() const override;
  void ForgetExhaustion() override;
  void BeginAverage() override;
  void UpdateAverage(uint64_t step) override;
  absl::Status UseAverage() override;
  absl::StatusOr<Evaluation> Evaluate(absl::string_view name, const v1::DataSpec& spec,
                                      const DataSet& data, absl::Span<const RowId> rows, Team& team,
                                      const EvaluationOptions& options) override;
  absl::StatusOr<ReplicaCheck> Compare(Team& team) override;
  absl::Status Save(const std::string& path) override;

 private:
  // Sets parameters_ and states_ to where the model has them.
  void FindHostMemory();

  const TrainingRun& run_;
  const std::unique_ptr<Device<T>> device_;
  const std::unique_ptr<Model<T>> model_;
  const Loss loss_;
  T no_memory_zero_ = 0;
  // Null if there is no memory that can be shared.
  std::unique_ptr<GradientMemory<T>> gradient_memory_;
  // Null before UseResultsOf.
  std::unique_ptr<PinnedResults> results_;
  // Null if the optimizer runs on the servers.
  std::unique_ptr<ModelOptimizer<T>> optimizer_;
  // Null if the job has no moving average.
  std::unique_ptr<ParameterAverage<T>> average_;
  // Whether the averages are the model and not among the parameters yet.
  bool evaluates_average_ = false;
};

extern template class ModelReplica<float>;
extern template class ModelReplica<double>;

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_MODEL_REPLICA_H_
