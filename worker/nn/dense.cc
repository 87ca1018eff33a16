#include "worker/nn/dense.h"

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
      output_(device.memory()) {
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
const DeviceMatrix<T>& Dense<T>::Forward(const Pass&, const DeviceMatrix<T>& input) {
  output_.Resize(input.rows(), outputs());
  MatrixProduct<T> product;
  product.rows = input.rows();
  product.columns = outputs();
  product.inner = inputs();
  product.a = input.data();
  product.a_stride = inputs();
  product.b = kernel_.device_values();
  product.b_stride = kernel_.values.cols();
  product.transpose_b = options_.torch_names;
  product.c = output_.data();
  product.c_stride = outputs();
  this->device_.Multiply(product);
  this->device_.AddToRows(input.rows(), outputs(), bias_.device_values(), output_.data());
  this->device_.Activate(options_.activation, output_.size(), output_.data());
  return output_;
}

template <typename T>
void Dense<T>::Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                        DeviceMatrix<T>* input_gradient) {
  this->device_.MultiplyByDerivative(options_.activation, output_.size(), output_.data(),
                                     output_gradient.data());
  // The kernel's gradient is input^T output_gradient. With torch_names the kernel is transposed,
  // and so is its gradient: output_gradient^T input.
  const DeviceMatrix<T>& left = options_.torch_names ? output_gradient : input;
  const DeviceMatrix<T>& right = options_.torch_names ? input : output_gradient;
  MatrixProduct<T> by_kernel;
  by_kernel.rows = left.cols();
  by_kernel.columns = right.cols();
  by_kernel.inner = input.rows();
  by_kernel.a = left.data();
  by_kernel.a_stride = left.cols();
  by_kernel.transpose_a = true;
  by_kernel.b = right.data();
  by_kernel.b_stride = right.cols();
  by_kernel.c = kernel_.device_gradient();
  by_kernel.c_stride = right.cols();
  this->device_.Multiply(by_kernel);
  this->device_.SumRows(output_gradient.rows(), outputs(), output_gradient.data(),
                        bias_.device_gradient());
  if (input_gradient == nullptr) return;
  input_gradient->Resize(input.rows(), inputs());
  MatrixProduct<T> by_input;
  by_input.rows = input.rows();
  by_input.columns = inputs();
  by_input.inner = outputs();
  by_input.a = output_gradient.data();
  by_input.a_stride = outputs();
  by_input.b = kernel_.device_values();
  by_input.b_stride = kernel_.values.cols();
  by_input.transpose_b = !options_.torch_names;
  by_input.c = input_gradient->data();
  by_input.c_stride = inputs();
  this->device_.Multiply(by_input);
}

template class Dense<float>;
template class Dense<double>;

}  // namespace syncgrads
