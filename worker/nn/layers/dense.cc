#include "worker/nn/layers/dense.h"

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

namespace syncgrads {

template <typename T>
absl::StatusOr<std::unique_ptr<Dense<T>>> Dense<T>::Create(const std::string& name,
                                                           Device<T>& device, const Shape& input,
                                                           const DenseOptions& options) {
  if (input.is_image) {
    return absl::InvalidArgumentError(
        absl::StrCat("layer \"", name, "\" with ", options.outputs,
                     " outputs needs a vector as its input, but its input has shape ",
                     ToString(input), ": put flatten or global_average_pool before it"));
  }
  return absl::WrapUnique(new Dense(name, device, input, options));
}

template <typename T>
Dense<T>::Dense(const std::string& name, Device<T>& device, const Shape& input,
                const DenseOptions& options)
    : Layer<T>(name, device, input, Shape::Flat(options.outputs)),
      options_(options),
      packed_(device),
      output_(device) {
  if (options_.torch_names) {
    kernel_ =
        Parameter<T>::Array(device.memory(), absl::StrCat(name, ".weight"), {outputs(), inputs()});
    bias_ = Parameter<T>::Vector(device.memory(), absl::StrCat(name, ".bias"), outputs());
  } else {
    kernel_ =
        Parameter<T>::Array(device.memory(), absl::StrCat(name, "/kernel"), {inputs(), outputs()});
    bias_ = Parameter<T>::Vector(device.memory(), absl::StrCat(name, "/bias"), outputs());
  }
}

template <typename T>
void Dense<T>::Initialise(uint64_t seed) {
  InitialiseWeights(options_.initialisation, inputs(), outputs(), seed, kernel_);
  bias_.values.setZero();
}

template <typename T>
Affine<T> Dense<T>::layer() {
  return {inputs(),
          outputs(),
          kernel_.device_values(),
          options_.torch_names,
          bias_.device_values(),
          options_.activation,
          &packed_};
}

template <typename T>
const DeviceMatrix<T>& Dense<T>::Forward(const Pass&, const DeviceMatrix<T>& input) {
  output_.Resize(input.rows(), outputs());
  this->device_.Multiply(layer(), input.rows(), input.data(), output_.data());
  return output_;
}

template <typename T>
void Dense<T>::Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                        DeviceMatrix<T>* input_gradient) {
  if (input_gradient != nullptr) input_gradient->Resize(input.rows(), inputs());
  this->device_.MultiplyBackward(layer(), input.rows(), input.data(), output_.data(),
                                 output_gradient.data(),
                                 {kernel_.device_gradient(), bias_.device_gradient(),
                                  input_gradient == nullptr ? nullptr : input_gradient->data()});
}

template class Dense<float>;
template class Dense<double>;

}  // namespace syncgrads
