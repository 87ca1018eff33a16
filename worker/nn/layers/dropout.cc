#include "worker/nn/layers/dropout.h"

#include "worker/base/random.h"

namespace syncgrads {

template <typename T>
const DeviceMatrix<T>& Dropout<T>::Forward(const Pass& pass, const DeviceMatrix<T>& input) {
  drops_ = pass.training && rate_ > 0;
  if (!drops_) return input;
  key_ = RandomStream(pass.seed, {HashBytes(this->name()), pass.step, pass.member}).key();
  output_.Resize(input.rows(), input.cols());
  this->device_.Dropout(key_, rate_, input.size(), input.data(), output_.data());
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
  this->device_.Dropout(key_, rate_, output_gradient.size(), output_gradient.data(),
                        input_gradient->data());
}

template class Dropout<float>;
template class Dropout<double>;

}  // namespace syncgrads
