#include "worker/nn/models/model.h"

#include <utility>

#include "common/status_macros.h"

namespace syncgrads {

template <typename T>
Model<T>::Model(std::unique_ptr<Chain<T>> chain)
    : chain_(std::move(chain)),
      parameters_(chain_->parameters()),
      states_(chain_->states()),
      parameter_arrays_(device().memory(), parameters_),
      state_arrays_(device().memory(), states_),
      input_(device()),
      ahead_(device()),
      device_spans_(device().memory()),
      output_gradient_(device()),
      targets_(device().memory()),
      total_loss_(device().memory(), 1, 1) {
  for (size_t i = 0; i < parameters_.size(); ++i) positions_[parameters_[i]] = i;
  chain_->SetDeviceSpans(&device_spans_);
  device().memory().SetZero(total_loss_.data(), total_loss_.bytes());
}

template <typename T>
void Model<T>::Freeze(const std::vector<bool>& frozen) {
  std::vector<Parameter<T>*> trained;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i]->frozen = frozen[i];
    (frozen[i] ? frozen_ : trained).push_back(parameters_[i]);
  }
  parameters_ = std::move(trained);
  positions_.clear();
  for (size_t i = 0; i < parameters_.size(); ++i) positions_[parameters_[i]] = i;
}

template <typename T>
void Model<T>::Initialise(uint64_t seed) {
  chain_->Initialise(seed);
  Upload().IgnoreError();  // status() keeps the error
}

template <typename T>
absl::Status Model<T>::Upload() {
  parameter_arrays_.Upload();
  state_arrays_.Upload();
  return device().memory().Finish();
}

template <typename T>
absl::Status Model<T>::FetchStates() {
  return state_arrays_.Fetch();
}

template <typename T>
const Matrix<T>& Model<T>::Forward(const Pass& pass, const Matrix<T>& input) {
  input_.Bring(input);
  chain_->Forward(pass, input_.matrix()).Fetch(outputs_).IgnoreError();  // status() keeps the error
  return outputs_;
}

template <typename T>
absl::Status Model<T>::QueueBackward(absl::FunctionRef<absl::Status(size_t parameter)> ready) {
  SYNCGRADS_RETURN_IF_ERROR(chain_->BackwardEach(
      input_.matrix(), output_gradient_, nullptr, [&](Parameter<T>& parameter) {
        return parameter.frozen ? absl::OkStatus() : ready(positions_.at(&parameter));
      }));
  return status();
}

template <typename T>
absl::Status Model<T>::Backward(const Matrix<T>& output_gradient,
                                absl::FunctionRef<absl::Status(size_t parameter)> ready) {
  // Layers overwrite the gradient, so they get a copy.
  output_gradient_.Upload(output_gradient);
  return QueueBackward(ready);
}

template <typename T>
void Model<T>::BringAhead(const ModelInput<T>& input) {
  DeviceMemory& memory = device().memory();
  if (memory.is_host() || !memory.status().ok()) return;
  ahead_.UploadBeside(input);
  is_ahead_ = memory.status().ok();
  if (!is_ahead_) memory.ForgetExhaustion();
}

template <typename T>
void Model<T>::ForgetAhead() {
  is_ahead_ = false;
  ahead_ = DeviceInput<T>(device());
}

template <typename T>
absl::Status Model<T>::ComputeGradients(const Pass& pass, const ModelInput<T>& input,
                                        const Loss& loss, absl::Span<const double> targets,
                                        double divisor,
                                        absl::FunctionRef<absl::Status(size_t parameter)> needed,
                                        absl::FunctionRef<absl::Status(size_t parameter)> ready) {
  device_spans_.Begin(trace_);
  if (std::exchange(is_ahead_, false)) {
    std::swap(input_, ahead_);
    input_.Arrive();
  } else {
    input_.Bring(input);
  }
  if (loss.custom == nullptr) {
    // Before the forward pass, because an upload waits for what is queued.
    targets_.Resize(1, static_cast<int64_t>(targets.size()));
    device().memory().Upload(targets.data(), targets_.bytes(), targets_.data());
  }
  SYNCGRADS_ASSIGN_OR_RETURN(
      const DeviceMatrix<T>* const forward,
      chain_->ForwardEach(pass, input_.matrix(), [&](Parameter<T>& parameter) {
        return parameter.frozen ? absl::OkStatus() : needed(positions_.at(&parameter));
      }));
  const DeviceMatrix<T>& outputs = *forward;
  if (loss.custom != nullptr) {
    SYNCGRADS_RETURN_IF_ERROR(outputs.Fetch(outputs_));
    Matrix<T> gradient;
    SYNCGRADS_ASSIGN_OR_RETURN(const double value,
                               ComputeCustomLoss(loss, outputs_, targets, divisor, gradient));
    custom_loss_ += value;
    return Backward(gradient, ready);
  }
  output_gradient_.Resize(outputs.rows(), outputs.cols());
  device().FindLoss(loss.rule(), targets_.size(), ColumnsOfATarget(outputs.size(), targets.size()),
                    outputs.data(), targets_.data(), divisor, total_loss_.data(),
                    output_gradient_.data());
  return QueueBackward(ready);
}

template <typename T>
void Model<T>::Penalise(const Loss& loss, size_t parameter) {
  Parameter<T>& penalised = *parameters_[parameter];
  if (loss.l2 == 0 || !penalised.penalised) return;
  has_penalties_ = true;
  device().Penalise(loss.l2, penalised.values.size(), penalised.device_values(),
                    penalised.device_gradient());
}

template <typename T>
absl::StatusOr<double> Model<T>::TakeLoss() {
  if (std::exchange(has_penalties_, false)) device().TakePenalties(total_loss_.data());
  Matrix<double> loss;
  SYNCGRADS_RETURN_IF_ERROR(total_loss_.Fetch(loss));
  SYNCGRADS_RETURN_IF_ERROR(device_spans_.Record());
  device().memory().SetZero(total_loss_.data(), total_loss_.bytes());
  return loss(0, 0) + std::exchange(custom_loss_, 0);
}

template class Model<float>;
template class Model<double>;

}  // namespace syncgrads
