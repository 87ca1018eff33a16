#include "worker/nn/dropout.h"

#include "worker/base/random.h"

namespace syncgrads {

template <typename T>
const DeviceMatrix<T>& Dropout<T>::Forward(const Pass& pass, const DeviceMatrix<T>& input) {
  drops_ = pass.training && rate_ > 0;
  if (!drops_) return input;
  const RandomStream random(pass.seed, {HashBytes(this->name()), pass.step, pass.member});
  factors_.Resize(input.rows(), input.cols());
  this->device_.DrawDropout(random.key(), rate_, factors_.size(), factors_.data());
  output_.Resize(input.rows(), input.cols());
  this->device_.MultiplyEach(input.size(), input.data(), factors_.data(), output_.data());
  return output_;
}

template <typename T>
void Dropout<T>::Backward(const DeviceMatrix<T>&, DeviceMatrix<T>& output_gradient,
                          DeviceMatrix<T>* input_gradient) {
  if (input_gradient == nullptr) return;
  if (!drops_) {
    input_gradient->CopyFrom(output_gradient);
    return;
  }
  input_gradient->Resize(output_gradient.rows(), output_gradient.cols());
  this->device_.MultiplyEach(output_gradient.size(), output_gradient.data(), factors_.data(),
                             input_gradient->data());
}

template class Dropout<float>;
template class Dropout<double>;

}  // namespace syncgrads
