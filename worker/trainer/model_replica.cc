#include "worker/trainer/model_replica.h"

#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "common/dtype.h"
#include "common/status_macros.h"
#include "worker/train/model_file.h"

namespace syncgrads {

template <typename T>
ModelReplica<T>::ModelReplica(const TrainingRun& run, std::unique_ptr<Device<T>> device,
                              std::unique_ptr<Model<T>> model, Loss loss,
                              std::vector<TensorFactors> factors)
    : run_(run), device_(std::move(device)), model_(std::move(model)), loss_(std::move(loss)) {
  factors_ = std::move(factors);
  zero_ = &no_memory_zero_;
  FindHostMemory();
}

template <typename T>
void ModelReplica<T>::FindHostMemory() {
  parameters_.clear();
  for (Parameter<T>* parameter : model_->parameters()) {
    parameters_.push_back(
        {parameter->spec(),
         parameter->values.data(),
         {DTypeOf<T>::value, reinterpret_cast<std::byte*>(parameter->gradient.data()),
          static_cast<size_t>(parameter->gradient.size())}});
  }
  states_.clear();
  for (Parameter<T>* state : model_->states()) {
    states_.push_back({state->spec(), state->values.data()});
  }
  frozen_.clear();
  for (Parameter<T>* parameter : model_->frozen()) {
    frozen_.push_back({parameter->spec(), parameter->values.data()});
  }
}

template <typename T>
absl::Status ModelReplica<T>::CreateAverage() {
  if (!run_.job.has_ema()) return absl::OkStatus();
  SYNCGRADS_ASSIGN_OR_RETURN(
      average_, ParameterAverage<T>::Create(run_.job.ema(), *device_, model_->parameters()));
  averages_ = average_->state();
  evaluates_average_ = average_->is_model();
  return absl::OkStatus();
}

template <typename T>
absl::Status ModelReplica<T>::ShareGradients(Team& team) {
  SYNCGRADS_ASSIGN_OR_RETURN(
      gradient_memory_, GradientMemory<T>::Create(team, device_->memory(), model_->parameters()));
  zero_ = gradient_memory_->behind();
  FindHostMemory();
  return absl::OkStatus();
}

template <typename T>
absl::Status ModelReplica<T>::CreateOptimizer(const Optimizer& rule) {
  SYNCGRADS_ASSIGN_OR_RETURN(
      optimizer_, ModelOptimizer<T>::Create(rule, *device_, model_->parameters(), factors_));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    for (int slot = 0; slot < optimizer_->slots(); ++slot) {
      slots_.push_back({SlotSpec(parameters_[i].spec, slot), optimizer_->slot(i, slot)});
    }
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status ModelReplica<T>::Apply(absl::Span<const size_t> parameters, double rate_factor) {
  optimizer_->SetRateFactor(rate_factor);
  return optimizer_->Apply(parameters);
}

template <typename T>
void ModelReplica<T>::SetGradient(size_t parameter,
                                  std::vector<absl::Span<const std::byte>> pieces) {
  if (optimizer_->uploads_gradients()) {
    std::byte* own = parameters_[parameter].gradient.data;
    for (absl::Span<const std::byte>& piece : pieces) {
      // The device cannot read memory that is not pinned.
      if (piece.data() != own && !results_->Has(piece)) {
        std::memcpy(own, piece.data(), piece.size());
        piece = absl::MakeConstSpan(own, piece.size());
      }
      own += piece.size();
    }
  }
  optimizer_->SetGradient(parameter, std::move(pieces));
}

template <typename T>
uint64_t ModelReplica<T>::updates(size_t parameter) const {
  return optimizer_ == nullptr ? 0 : optimizer_->updates(parameter);
}

template <typename T>
void ModelReplica<T>::set_updates(size_t parameter, uint64_t updates) {
  if (optimizer_ != nullptr) optimizer_->set_updates(parameter, updates);
}

template <typename T>
bool ModelReplica<T>::Keep(size_t parameter) {
  return optimizer_ == nullptr || optimizer_->Keep(parameter);
}

template <typename T>
void ModelReplica<T>::Undo() {
  if (optimizer_ != nullptr) optimizer_->Undo();
}

template <typename T>
void ModelReplica<T>::ForgetKept() {
  if (optimizer_ != nullptr) optimizer_->ForgetKept();
}

template <typename T>
void ModelReplica<T>::BeginFetch() {
  if (optimizer_ != nullptr) optimizer_->BeginFetch();
}

template <typename T>
absl::Status ModelReplica<T>::Fetch(ReplicaPart part) {
  if (optimizer_ != nullptr && part != ReplicaPart::kStates) {
    SYNCGRADS_RETURN_IF_ERROR(part == ReplicaPart::kValues ? optimizer_->FetchValues()
                                                           : optimizer_->Fetch());
  }
  if (average_ != nullptr && part != ReplicaPart::kStates && part != ReplicaPart::kValues) {
    SYNCGRADS_RETURN_IF_ERROR(average_->Fetch());
  }
  const bool with_states = part == ReplicaPart::kStates || part == ReplicaPart::kAll;
  return with_states ? model_->FetchStates() : absl::OkStatus();
}

template <typename T>
void ModelReplica<T>::Upload(absl::Span<const size_t> parameters) {
  for (const size_t i : parameters) model_->parameters()[i]->Upload();
}

template <typename T>
void ModelReplica<T>::UploadStates() {
  for (Parameter<T>* state : model_->states()) state->Upload();
}

template <typename T>
absl::Status ModelReplica<T>::UploadAll() {
  if (optimizer_ != nullptr) optimizer_->UploadSlots();
  if (average_ != nullptr) average_->Upload();
  return model_->Upload();
}

template <typename T>
absl::Status ModelReplica<T>::Finish() {
  return device_->memory().Finish();
}

template <typename T>
absl::Status ModelReplica<T>::status() const {
  return device_->memory().status();
}

template <typename T>
void ModelReplica<T>::ForgetExhaustion() {
  device_->memory().ForgetExhaustion();
}

template <typename T>
void ModelReplica<T>::BeginAverage() {
  if (average_ != nullptr) average_->Begin();
}

template <typename T>
void ModelReplica<T>::UpdateAverage(uint64_t step) {
  if (average_ != nullptr) average_->Update(step);
}

template <typename T>
absl::Status ModelReplica<T>::UseAverage() {
  if (!std::exchange(evaluates_average_, false)) return absl::OkStatus();
  SYNCGRADS_RETURN_IF_ERROR(Fetch(ReplicaPart::kTrained));
  return average_->Exchange();
}

template <typename T>
absl::StatusOr<Evaluation> ModelReplica<T>::Evaluate(absl::string_view name,
                                                     const v1::DataSpec& spec, const DataSet& data,
                                                     absl::Span<const RowId> rows, Team& team,
                                                     const EvaluationOptions& options) {
  RowsInBatches<T> source(run_.job, spec, data, run_.team.world_size(), run_.options.device);
  if (evaluates_average_) SYNCGRADS_RETURN_IF_ERROR(average_->Exchange());
  absl::StatusOr<Evaluation> evaluation;
  absl::Status restored;
  {
    const absl::Cleanup restore = [&] {
      // If the evaluation has run out of memory, the device would do nothing more.
      device_->memory().ForgetExhaustion();
      if (evaluates_average_) restored = average_->Exchange();
    };
    evaluation = syncgrads::Evaluate(name, *model_, loss_, source, rows, team, options);
  }
  SYNCGRADS_RETURN_IF_ERROR(evaluation.status());
  SYNCGRADS_RETURN_IF_ERROR(restored);
  return evaluation;
}

template <typename T>
absl::StatusOr<ReplicaCheck> ModelReplica<T>::Compare(Team& team) {
  SYNCGRADS_RETURN_IF_ERROR(Fetch(ReplicaPart::kValues));
  return CompareReplicas(model_->parameters(), team);
}

template <typename T>
absl::Status ModelReplica<T>::Save(const std::string& path) {
  SYNCGRADS_RETURN_IF_ERROR(Fetch(ReplicaPart::kValues));
  return SaveModel(*model_, run_.data.classes, run_.data.data.total_shards, run_.job.name(), path);
}

template class ModelReplica<float>;
template class ModelReplica<double>;

}  // namespace syncgrads
