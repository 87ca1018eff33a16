#include "worker/train/trainer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/contract/contract.h"
#include "common/status_macros.h"
#include "worker/nn/build.h"

namespace syncgrads {
namespace {

template <typename T>
absl::Span<std::byte> BytesOf(Matrix<T>& values) {
  return absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(T));
}

}  // namespace

template <typename T>
absl::StatusOr<std::unique_ptr<Trainer<T>>> Trainer<T>::Create(const v1::JobFile& job,
                                                               const DataSet& data, Team& team,
                                                               const TrainerOptions& options) {
  SYNCGRADS_ASSIGN_OR_RETURN(Loader loader,
                             Loader::Create(data.data, {.seed = job.seed(),
                                                        .batch_size = job.batch_size(),
                                                        .holdout_every = job.data().holdout_every(),
                                                        .order = job.data().order(),
                                                        .epochs = job.epochs(),
                                                        .steps = job.steps()}));
  std::unique_ptr<Trainer> trainer(new Trainer(job, data, team, options, std::move(loader)));
  SYNCGRADS_RETURN_IF_ERROR(trainer->MakePlan());
  if (WindowInput<T>* window = FindWindowInput(*trainer->model_); window != nullptr) {
    SYNCGRADS_ASSIGN_OR_RETURN(const Ranges ranges,
                               FindRanges(data, job.data().holdout_every(), team));
    window->SetRanges(ranges.minimum, ranges.maximum);
  }
  SYNCGRADS_RETURN_IF_ERROR(trainer->Register());
  SYNCGRADS_RETURN_IF_ERROR(trainer->ShareInitialParameters());
  return trainer;
}

template <typename T>
Trainer<T>::Trainer(const v1::JobFile& job, const DataSet& data, Team& team,
                    const TrainerOptions& options, Loader loader)
    : job_(job),
      data_(data),
      team_(team),
      options_(options),
      loss_(BuildLoss(job.loss())),
      loader_(std::move(loader)),
      model_(BuildModel<T>(job.model(), static_cast<int64_t>(data.features.size()))) {
  model_->Initialise(job.seed());
}

template <typename T>
absl::Status Trainer<T>::MakePlan() {
  const uint32_t every = job_.data().holdout_every();
  double rows[] = {static_cast<double>(RowsOf(data_.data, every, /*held_out=*/false).size()),
                   static_cast<double>(RowsOf(data_.data, every, /*held_out=*/true).size())};
  double steps = static_cast<double>(loader_.steps());
  SYNCGRADS_RETURN_IF_ERROR(
      team_.AllReduce("plan/rows", absl::MakeSpan(rows), Reduction::kSum).status());
  SYNCGRADS_RETURN_IF_ERROR(
      team_.AllReduce("plan/steps", absl::MakeSpan(&steps, 1), Reduction::kMax).status());
  plan_.job = job_.name();
  plan_.workers = team_.world_size();
  plan_.shards = data_.data.total_shards;
  plan_.training_rows = static_cast<uint64_t>(rows[0]);
  plan_.held_out_rows = static_cast<uint64_t>(rows[1]);
  plan_.batch_size = job_.batch_size();
  plan_.steps = static_cast<uint64_t>(steps);
  for (const Parameter<T>* parameter : model_->parameters()) {
    plan_.parameters += static_cast<uint64_t>(parameter->values.size());
  }
  if (plan_.training_rows == 0) {
    return absl::FailedPreconditionError("no worker has a row to train on");
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status Trainer<T>::Register() {
  SYNCGRADS_ASSIGN_OR_RETURN(const Optimizer optimizer, FromProto(job_.optimizer()));
  GroupSpec spec;
  spec.name = "model";
  spec.chunk_bytes = job_.chunk_bytes();
  if (optimizes_on_servers()) {
    spec.rule = optimizer;
  } else {
    spec.rule = Reduction::kAverage;
  }
  for (const Parameter<T>* parameter : model_->parameters()) {
    spec.tensors.push_back(parameter->spec());
  }
  SYNCGRADS_ASSIGN_OR_RETURN(group_, team_.Register(spec));
  for (const TensorSpec& tensor : spec.tensors) {
    SYNCGRADS_ASSIGN_OR_RETURN(const TensorId id, group_->Find(tensor.name));
    tensors_.push_back(id);
  }
  if (optimizes_on_servers()) return absl::OkStatus();
  SYNCGRADS_ASSIGN_OR_RETURN(optimizer_,
                             LocalOptimizer::Create(optimizer, group_->layout().tensors()));
  return absl::OkStatus();
}

template <typename T>
absl::Status Trainer<T>::ShareInitialParameters() {
  if (optimizes_on_servers()) {
    std::vector<void*> values;
    for (Parameter<T>* parameter : model_->parameters()) values.push_back(parameter->values.data());
    return group_->Broadcast(/*root=*/0, values, options_.step_timeout);
  }
  std::vector<NamedTensor> tensors;
  for (Parameter<T>* parameter : model_->parameters()) {
    tensors.push_back({parameter->spec(), parameter->values.data()});
  }
  return team_.BroadcastAll("model/initial", tensors);
}

template <typename T>
absl::Status Trainer<T>::Train() {
  options_.progress->Started(plan_);
  while (true) {
    if (options_.should_stop && options_.should_stop()) {
      return absl::CancelledError(absl::StrCat("told to stop after step ", steps_));
    }
    const std::vector<RowId> rows = loader_.Next();
    if (rows.empty()) break;
    SYNCGRADS_ASSIGN_OR_RETURN(const double loss, PushBatch(rows));
    SYNCGRADS_RETURN_IF_ERROR(FinishStep(loss));
  }
  SYNCGRADS_RETURN_IF_ERROR(group_->End(options_.step_timeout));
  while (true) {
    if (options_.should_stop && options_.should_stop()) {
      return absl::CancelledError(absl::StrCat("told to stop after step ", steps_));
    }
    SYNCGRADS_ASSIGN_OR_RETURN(const bool more, FollowStep());
    if (!more) break;
  }
  options_.progress->Finished();
  return absl::OkStatus();
}

template <typename T>
void* Trainer<T>::ResultOf(size_t i) {
  Parameter<T>& parameter = *model_->parameters()[i];
  return optimizes_on_servers() ? parameter.values.data() : parameter.gradient.data();
}

template <typename T>
absl::StatusOr<double> Trainer<T>::PushBatch(const std::vector<RowId>& rows) {
  FillBatch(data_, rows, features_, targets_);
  const double divisor = loss_.Divisor(features_.rows(), features_.cols());
  const Matrix<T>& outputs = model_->Forward(features_);
  double loss = SumOfLosses(loss_, outputs, targets_) / divisor;
  for (const Parameter<T>* parameter : model_->parameters()) loss += Penalty(loss_, *parameter);
  if (job_.weight_by_samples()) {
    SYNCGRADS_RETURN_IF_ERROR(group_->SetWeight(static_cast<double>(rows.size())));
  }
  LossGradient(loss_, outputs, targets_, divisor, output_gradient_);
  SYNCGRADS_RETURN_IF_ERROR(model_->Backward(output_gradient_, [this](size_t i) -> absl::Status {
    Parameter<T>& parameter = *model_->parameters()[i];
    AddPenaltyGradient(loss_, parameter);
    return group_->Push(tensors_[i], parameter.gradient.data(), parameter.bytes(), ResultOf(i));
  }));
  return loss;
}

template <typename T>
absl::StatusOr<bool> Trainer<T>::FollowStep() {
  std::vector<void*> results;
  for (size_t i = 0; i < tensors_.size(); ++i) results.push_back(ResultOf(i));
  absl::Status status = group_->SkipAll(results);
  if (status.ok()) status = FinishStep(std::nullopt);
  if (absl::IsOutOfRange(status)) return false;
  SYNCGRADS_RETURN_IF_ERROR(status);
  return true;
}

template <typename T>
absl::Status Trainer<T>::FinishStep(std::optional<double> loss) {
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<Contributors> contributors,
                             group_->WaitStep(options_.step_timeout));
  ++steps_;
  for (size_t i = 0; optimizer_.has_value() && i < tensors_.size(); ++i) {
    // What nobody had a gradient for stays as it is.
    if (contributors[ToNumber(tensors_[i])].most == 0) continue;
    Parameter<T>& parameter = *model_->parameters()[i];
    SYNCGRADS_RETURN_IF_ERROR(
        optimizer_->Apply(tensors_[i], BytesOf(parameter.gradient), BytesOf(parameter.values)));
  }
  options_.progress->Stepped(steps_, loss);
  return absl::OkStatus();
}

template class Trainer<float>;
template class Trainer<double>;

}  // namespace syncgrads
