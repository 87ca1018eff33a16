#include "worker/nn/layers/chain.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/trace/trace.h"
#include "worker/nn/device_memory.h"

namespace syncgrads {

template <typename T>
Chain<T>::Chain(const std::string& name, Device<T>& device, const Shape& input,
                std::vector<std::unique_ptr<Layer<T>>> layers,
                std::shared_ptr<GradientBuffers<T>> buffers)
    : Layer<T>(name, device, input, layers.empty() ? input : layers.back()->output_shape()),
      layers_(std::move(layers)),
      layer_inputs_(layers_.size()),
      buffers_(buffers != nullptr ? std::move(buffers)
                                  : std::make_shared<GradientBuffers<T>>(device)) {
  for (const auto& layer : layers_) {
    forward_names_.push_back(InternTraceName(absl::StrCat("forward ", layer->name())));
    backward_names_.push_back(InternTraceName(absl::StrCat("backward ", layer->name())));
    device_forward_names_.push_back(
        InternTraceName(absl::StrCat("device forward ", layer->name())));
    device_backward_names_.push_back(
        InternTraceName(absl::StrCat("device backward ", layer->name())));
  }
}

template <typename T>
std::vector<Parameter<T>*> Chain<T>::parameters() {
  std::vector<Parameter<T>*> all;
  for (const auto& layer : layers_) {
    for (Parameter<T>* parameter : layer->parameters()) all.push_back(parameter);
  }
  return all;
}

template <typename T>
std::vector<Parameter<T>*> Chain<T>::states() {
  std::vector<Parameter<T>*> all;
  for (const auto& layer : layers_) {
    for (Parameter<T>* state : layer->states()) all.push_back(state);
  }
  return all;
}

template <typename T>
size_t Chain<T>::FirstTrained() const {
  for (size_t i = 0; i < layers_.size(); ++i) {
    for (const Parameter<T>* parameter : layers_[i]->parameters()) {
      if (!parameter->frozen) return i;
    }
  }
  return layers_.size();
}

template <typename T>
void Chain<T>::SetExchange(BatchExchange* exchange) {
  for (const auto& layer : layers_) layer->SetExchange(exchange);
}

template <typename T>
void Chain<T>::Initialise(uint64_t seed) {
  for (const auto& layer : layers_) layer->Initialise(seed);
}

template <typename T>
const DeviceMatrix<T>& Chain<T>::Forward(const Pass& pass, const DeviceMatrix<T>& input) {
  // ForwardEach cannot fail here, because the callback never does.
  return **ForwardEach(pass, input, [](Parameter<T>&) { return absl::OkStatus(); });
}

template <typename T>
absl::StatusOr<const DeviceMatrix<T>*> Chain<T>::ForwardEach(const Pass& pass,
                                                             const DeviceMatrix<T>& input,
                                                             Needed<T> needed) {
  const DeviceMatrix<T>* values = &input;
  for (size_t i = 0; i < layers_.size(); ++i) {
    layer_inputs_[i] = values;
    const Trace::Span span(trace_, Trace::Row::kCompute, forward_names_[i]);
    const DeviceRange range(this->device().memory(), forward_names_[i]);
    SYNCGRADS_ASSIGN_OR_RETURN(values, layers_[i]->ForwardEach(pass, *values, needed));
    NoteDeviceTime(device_forward_names_[i]);
  }
  return values;
}

template <typename T>
void Chain<T>::Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                        DeviceMatrix<T>* input_gradient) {
  BackwardEach(input, output_gradient, input_gradient, [](Parameter<T>&) {
    return absl::OkStatus();
  }).IgnoreError();  // the callback never fails
}

template <typename T>
absl::Status Chain<T>::BackwardEach(const DeviceMatrix<T>&, DeviceMatrix<T>& output_gradient,
                                    DeviceMatrix<T>* input_gradient, Ready<T> ready) {
  DeviceMatrix<T>* gradient = &output_gradient;
  // The gradients are in two buffers in turn. The first layer's is `input_gradient`, if there is
  // one.
  std::optional<typename GradientBuffers<T>::Buffer> taken[2];
  const auto input_gradient_of = [&](size_t layer) {
    if (layer % 2 == 0 && input_gradient != nullptr) return input_gradient;
    if (!taken[layer % 2].has_value()) taken[layer % 2].emplace(*buffers_);
    return &taken[layer % 2]->matrix();
  };
  // Layers before the first parameter that is trained need no gradients.
  const size_t last = input_gradient == nullptr ? FirstTrained() : 0;
  for (size_t i = layers_.size(); i-- > 0;) {
    DeviceMatrix<T>* const next = i <= last ? input_gradient : input_gradient_of(i);
    const Trace::Span span(trace_, Trace::Row::kCompute, backward_names_[i]);
    const DeviceRange range(this->device().memory(), backward_names_[i]);
    SYNCGRADS_RETURN_IF_ERROR(layers_[i]->BackwardEach(*layer_inputs_[i], *gradient, next, ready));
    NoteDeviceTime(device_backward_names_[i]);
    if (next == nullptr) return absl::OkStatus();
    gradient = next;
  }
  if (layers_.empty() && input_gradient != nullptr) input_gradient->CopyFrom(output_gradient);
  return absl::OkStatus();
}

template class Chain<float>;
template class Chain<double>;

}  // namespace syncgrads
