#include "worker/nn/layers/residual.h"

#include <optional>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

// Returns the batch normalisation without an activation that the body ends with, or null.
template <typename T>
BatchNorm<T>* LastNorm(const Chain<T>& body) {
  if (body.layers().empty()) return nullptr;
  auto* const norm = dynamic_cast<BatchNorm<T>*>(body.layers().back().get());
  return norm == nullptr || norm->has_activation() ? nullptr : norm;
}

}  // namespace

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
      norm_(LastNorm(*body_)),
      activation_(activation),
      output_(device) {}

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
  SYNCGRADS_ASSIGN_OR_RETURN(const DeviceMatrix<T>* const shortcut,
                             shortcut_->ForwardEach(pass, input, needed));
  if (norm_ != nullptr) norm_->AddResidual(*shortcut, activation_);
  SYNCGRADS_ASSIGN_OR_RETURN(const DeviceMatrix<T>* const body,
                             body_->ForwardEach(pass, input, needed));
  if (norm_ != nullptr) return body;
  output_.Resize(body->rows(), body->cols());
  this->device_.Add(activation_, output_.size(), body->data(), shortcut->data(), output_.data());
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
  using Buffer = typename GradientBuffers<T>::Buffer;
  std::optional<Buffer> copy, taken;
  DeviceMatrix<T>* shortcut_gradient = &output_gradient;
  if (norm_ == nullptr) {
    this->device_.ActivateBackward(activation_, output_.size(), output_.data(),
                                   output_gradient.data());
    // The body's backward pass may overwrite its output gradient, so the shortcut's gets a copy.
    copy.emplace(body_->buffers());
    copy->matrix().CopyFrom(output_gradient);
    shortcut_gradient = &copy->matrix();
  }
  SYNCGRADS_RETURN_IF_ERROR(body_->BackwardEach(input, output_gradient, input_gradient, ready));
  if (!shortcut_->layers().empty()) {
    DeviceMatrix<T>* by_input = nullptr;
    if (input_gradient != nullptr) {
      // The shortcut of a block that samples down has two layers, so it needs no further buffer.
      const bool in_place = shortcut_->layers().size() % 2 == 0;
      if (!in_place) taken.emplace(body_->buffers());
      by_input = in_place ? shortcut_gradient : &taken->matrix();
    }
    SYNCGRADS_RETURN_IF_ERROR(shortcut_->BackwardEach(input, *shortcut_gradient, by_input, ready));
    shortcut_gradient = by_input;
  }
  if (input_gradient == nullptr) return absl::OkStatus();
  this->device_.Add(Activation::kIdentity, input_gradient->size(), input_gradient->data(),
                    shortcut_gradient->data(), input_gradient->data());
  return absl::OkStatus();
}

template class Residual<float>;
template class Residual<double>;

}  // namespace syncgrads
