#include "worker/nn/residual.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace syncgrads {

template <typename T>
absl::StatusOr<std::unique_ptr<Residual<T>>> Residual<T>::Create(const std::string& name,
                                                                 Device<T>& device,
                                                                 std::unique_ptr<Chain<T>> body,
                                                                 std::unique_ptr<Chain<T>> shortcut,
                                                                 Activation activation) {
  if (body->output_shape() != shortcut->output_shape()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer \"", name, "\": its body makes shape ", ToString(body->output_shape()),
        ", but its shortcut ", ToString(shortcut->output_shape()), ": they cannot be added"));
  }
  return absl::WrapUnique(
      new Residual(name, device, std::move(body), std::move(shortcut), activation));
}

template <typename T>
Residual<T>::Residual(const std::string& name, Device<T>& device, std::unique_ptr<Chain<T>> body,
                      std::unique_ptr<Chain<T>> shortcut, Activation activation)
    : Layer<T>(name, device, body->input_shape(), body->output_shape()),
      body_(std::move(body)),
      shortcut_(std::move(shortcut)),
      activation_(activation),
      output_(device.memory()),
      shortcut_gradient_(device.memory()),
      shortcut_input_gradient_(device.memory()) {}

template <typename T>
std::vector<Parameter<T>*> Residual<T>::parameters() {
  std::vector<Parameter<T>*> all = body_->parameters();
  for (Parameter<T>* parameter : shortcut_->parameters()) all.push_back(parameter);
  return all;
}

template <typename T>
std::vector<Parameter<T>*> Residual<T>::states() {
  std::vector<Parameter<T>*> all = body_->states();
  for (Parameter<T>* state : shortcut_->states()) all.push_back(state);
  return all;
}

template <typename T>
void Residual<T>::SetExchange(BatchExchange* exchange) {
  body_->SetExchange(exchange);
  shortcut_->SetExchange(exchange);
}

template <typename T>
void Residual<T>::Initialise(uint64_t seed) {
  body_->Initialise(seed);
  shortcut_->Initialise(seed);
}

template <typename T>
const DeviceMatrix<T>& Residual<T>::Forward(const Pass& pass, const DeviceMatrix<T>& input) {
  // ForwardEach cannot fail here, because the callback never does.
  return **ForwardEach(pass, input, [](Parameter<T>&) { return absl::OkStatus(); });
}

template <typename T>
absl::StatusOr<const DeviceMatrix<T>*> Residual<T>::ForwardEach(const Pass& pass,
                                                                const DeviceMatrix<T>& input,
                                                                Needed<T> needed) {
  SYNCGRADS_ASSIGN_OR_RETURN(const DeviceMatrix<T>* const body,
                             body_->ForwardEach(pass, input, needed));
  SYNCGRADS_ASSIGN_OR_RETURN(const DeviceMatrix<T>* const shortcut,
                             shortcut_->ForwardEach(pass, input, needed));
  output_.Resize(body->rows(), body->cols());
  this->device_.Add(output_.size(), body->data(), shortcut->data(), output_.data());
  this->device_.Activate(activation_, output_.size(), output_.data());
  return &output_;
}

template <typename T>
void Residual<T>::Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                           DeviceMatrix<T>* input_gradient) {
  BackwardEach(input, output_gradient, input_gradient, [](Parameter<T>&) {
    return absl::OkStatus();
  }).IgnoreError();  // the callback never fails
}

template <typename T>
absl::Status Residual<T>::BackwardEach(const DeviceMatrix<T>& input,
                                       DeviceMatrix<T>& output_gradient,
                                       DeviceMatrix<T>* input_gradient, Ready<T> ready) {
  this->device_.MultiplyByDerivative(activation_, output_.size(), output_.data(),
                                     output_gradient.data());
  // The first backward pass may overwrite its output gradient, so the second one gets a copy.
  shortcut_gradient_.CopyFrom(output_gradient);
  SYNCGRADS_RETURN_IF_ERROR(body_->BackwardEach(input, output_gradient, input_gradient, ready));
  SYNCGRADS_RETURN_IF_ERROR(shortcut_->BackwardEach(
      input, shortcut_gradient_, input_gradient == nullptr ? nullptr : &shortcut_input_gradient_,
      ready));
  if (input_gradient == nullptr) return absl::OkStatus();
  this->device_.Add(input_gradient->size(), input_gradient->data(), shortcut_input_gradient_.data(),
                    input_gradient->data());
  return absl::OkStatus();
}

template class Residual<float>;
template class Residual<double>;

}  // namespace syncgrads
