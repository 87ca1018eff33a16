#include "worker/nn/layers/flatten.h"

namespace syncgrads {

template <typename T>
const DeviceMatrix<T>& Flatten<T>::Forward(const Pass&, const DeviceMatrix<T>& input) {
  const Shape& shape = this->input_shape();
  if (shape.channels == 1 || shape.positions() == 1) return input;
  output_.Resize(input.rows(), input.cols());
  this->device_.Transpose(input.rows(), shape.positions(), shape.channels, input.data(),
                          output_.data());
  return output_;
}

template <typename T>
void Flatten<T>::Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                          DeviceMatrix<T>* input_gradient) {
  if (input_gradient == nullptr) return;
  input_gradient->Resize(input.rows(), input.cols());
  const Shape& shape = this->input_shape();
  this->device_.Transpose(input.rows(), shape.channels, shape.positions(), output_gradient.data(),
                          input_gradient->data());
}

template class Flatten<float>;
template class Flatten<double>;

}  // namespace syncgrads
