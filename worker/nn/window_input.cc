#include "worker/nn/window_input.h"

namespace syncgrads {

template <typename T>
WindowInput<T>::WindowInput(Device<T>& device, const Shape& input)
    : Layer<T>("window_input", device, input, input),
      minimum_(Parameter<T>::Vector(device.memory(), "window_input/minimum", input.size(),
                                    /*trained=*/false)),
      maximum_(Parameter<T>::Vector(device.memory(), "window_input/maximum", input.size(),
                                    /*trained=*/false)),
      output_(device.memory()) {}

template <typename T>
const DeviceMatrix<T>& WindowInput<T>::Forward(const Pass&, const DeviceMatrix<T>& input) {
  output_.Resize(input.rows(), input.cols());
  this->device_.ScaleToRanges(input.rows(), input.cols(), minimum_.device_values(),
                              maximum_.device_values(), input.data(), output_.data());
  return output_;
}

template <typename T>
void WindowInput<T>::Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                              DeviceMatrix<T>* input_gradient) {
  if (input_gradient == nullptr) return;
  input_gradient->Resize(input.rows(), input.cols());
  this->device_.ScaleToRangesBackward(input.rows(), input.cols(), minimum_.device_values(),
                                      maximum_.device_values(), output_gradient.data(),
                                      input_gradient->data());
}

template <typename T>
void WindowInput<T>::SetRanges(absl::Span<const double> minimum, absl::Span<const double> maximum) {
  for (int64_t i = 0; i < minimum_.values.cols(); ++i) {
    minimum_.values(0, i) = static_cast<T>(minimum[i]);
    maximum_.values(0, i) = static_cast<T>(maximum[i]);
  }
}

template class WindowInput<float>;
template class WindowInput<double>;

}  // namespace syncgrads
