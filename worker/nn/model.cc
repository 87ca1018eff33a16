#include "worker/nn/model.h"

#include <utility>

#include "common/status_macros.h"

namespace syncgrads {

template <typename T>
Model<T>::Model(std::vector<std::unique_ptr<Layer<T>>> layers) : layers_(std::move(layers)) {
  for (const auto& layer : layers_) {
    first_parameter_.push_back(parameters_.size());
    for (Parameter<T>* parameter : layer->parameters()) parameters_.push_back(parameter);
    for (Parameter<T>* state : layer->states()) states_.push_back(state);
  }
  first_parameter_.push_back(parameters_.size());
  layer_inputs_.resize(layers_.size());
}

template <typename T>
void Model<T>::Initialise(uint64_t seed) {
  for (const auto& layer : layers_) layer->Initialise(seed);
}

template <typename T>
const Matrix<T>& Model<T>::Forward(const Matrix<T>& input) {
  const Matrix<T>* values = &input;
  for (size_t i = 0; i < layers_.size(); ++i) {
    layer_inputs_[i] = values;
    values = &layers_[i]->Forward(*values);
  }
  return *values;
}

template <typename T>
absl::Status Model<T>::Backward(Matrix<T>& output_gradient,
                                absl::FunctionRef<absl::Status(size_t parameter)> ready) {
  Matrix<T>* gradient = &output_gradient;
  for (size_t i = layers_.size(); i-- > 0;) {
    // Layers before the first parameter need no gradients.
    const bool more = first_parameter_[i] > 0;
    Matrix<T>* input_gradient = more ? &gradients_[i % 2] : nullptr;
    layers_[i]->Backward(*layer_inputs_[i], *gradient, input_gradient);
    for (size_t p = first_parameter_[i]; p < first_parameter_[i + 1]; ++p) {
      SYNCGRADS_RETURN_IF_ERROR(ready(p));
    }
    if (!more) break;
    gradient = input_gradient;
  }
  return absl::OkStatus();
}

template class Model<float>;
template class Model<double>;

}  // namespace syncgrads
