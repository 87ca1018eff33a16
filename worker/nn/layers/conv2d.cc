#include "worker/nn/layers/conv2d.h"

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace syncgrads {

template <typename T>
absl::StatusOr<std::unique_ptr<Conv2d<T>>> Conv2d<T>::Create(const std::string& name,
                                                             Device<T>& device, const Shape& input,
                                                             const Conv2dOptions& options) {
  SYNCGRADS_ASSIGN_OR_RETURN(
      const Window window,
      Window::Create(name, input, options.height, options.width, options.stride, options.padding));
  return absl::WrapUnique(new Conv2d(name, device, window, options));
}

template <typename T>
Conv2d<T>::Conv2d(const std::string& name, Device<T>& device, const Window& window,
                  const Conv2dOptions& options)
    : Layer<T>(name, device, window.input,
               Shape::Image(options.outputs, window.output_height, window.output_width)),
      options_(options),
      window_(window),
      weight_(Parameter<T>::Array(
          device.memory(), absl::StrCat(name, ".weight"),
          {options.outputs, window.input.channels, window.height, window.width})),
      packed_(device),
      output_(device) {
  if (options_.bias)
    bias_ = Parameter<T>::Vector(device.memory(), absl::StrCat(name, ".bias"), options.outputs);
}

template <typename T>
std::vector<Parameter<T>*> Conv2d<T>::parameters() {
  if (options_.bias) return {&weight_, &bias_};
  return {&weight_};
}

template <typename T>
void Conv2d<T>::Initialise(uint64_t seed) {
  InitialiseWeights(options_.initialisation, window_.size(),
                    options_.outputs * window_.height * window_.width, seed, weight_);
  bias_.values.setZero();
}

template <typename T>
Convolution<T> Conv2d<T>::layer() {
  return {window_,
          options_.outputs,
          weight_.device_values(),
          options_.bias ? bias_.device_values() : nullptr,
          options_.activation,
          &packed_};
}

template <typename T>
const DeviceMatrix<T>& Conv2d<T>::Forward(const Pass&, const DeviceMatrix<T>& input) {
  output_.Resize(input.rows(), this->output_shape().size());
  this->device_.Convolve(layer(), input.rows(), input.data(), output_.data());
  return output_;
}

template <typename T>
void Conv2d<T>::Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                         DeviceMatrix<T>* input_gradient) {
  if (input_gradient != nullptr) input_gradient->Resize(input.rows(), input.cols());
  this->device_.ConvolveBackward(
      layer(), input.rows(), input.data(), output_.data(), output_gradient.data(),
      {weight_.device_gradient(), options_.bias ? bias_.device_gradient() : nullptr,
       input_gradient == nullptr ? nullptr : input_gradient->data()});
}

template class Conv2d<float>;
template class Conv2d<double>;

}  // namespace syncgrads
