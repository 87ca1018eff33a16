#include "worker/nn/layers/min_max_scaling.h"

namespace syncgrads {

template <typename T>
MinMaxScaling<T>::MinMaxScaling(const std::string& name, Device<T>& device, const Shape& input)
    : Layer<T>(name, device, input, input),
      minimum_(Parameter<T>::Vector(device.memory(), name + "/minimum", input.size(),
                                    /*trained=*/false)),
      maximum_(Parameter<T>::Vector(device.memory(), name + "/maximum", input.size(),
                                    /*trained=*/false)),
      output_(device) {}

template <typename T>
const DeviceMatrix<T>& MinMaxScaling<T>::Forward(const Pass&, const DeviceMatrix<T>& input) {
  output_.Resize(input.rows(), input.cols());
  this->device_.ScaleToRanges(
      {input.rows(), input.cols(), minimum_.device_values(), maximum_.device_values()},
      input.data(), output_.data());
  return output_;
}

template <typename T>
void MinMaxScaling<T>::Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                                DeviceMatrix<T>* input_gradient) {
  if (input_gradient == nullptr) return;
  input_gradient->Resize(input.rows(), input.cols());
  this->device_.ScaleToRangesBackward(
      {input.rows(), input.cols(), minimum_.device_values(), maximum_.device_values()},
      output_gradient.data(), input_gradient->data());
}

template <typename T>
void MinMaxScaling<T>::SetRanges(absl::Span<const double> minimum,
                                 absl::Span<const double> maximum) {
  for (int64_t i = 0; i < minimum_.values.cols(); ++i) {
    minimum_.values(0, i) = static_cast<T>(minimum[i]);
    maximum_.values(0, i) = static_cast<T>(maximum[i]);
  }
}

template class MinMaxScaling<float>;
template class MinMaxScaling<double>;

}  // namespace syncgrads
