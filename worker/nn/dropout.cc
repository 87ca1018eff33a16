#include "worker/nn/dropout.h"

#include "worker/base/random.h"

namespace syncgrads {

template <typename T>
const Matrix<T>& Dropout<T>::Forward(const Pass& pass, const Matrix<T>& input) {
  drops_ = pass.training && rate_ > 0;
  if (!drops_) return input;
  RandomStream random(pass.seed, {HashBytes(this->name()), pass.step, pass.member});
  const T kept = static_cast<T>(1 / (1 - rate_));
  factors_.resize(input.rows(), input.cols());
  for (Eigen::Index i = 0; i < factors_.size(); ++i) {
    factors_.data()[i] = random.NextUniform() < rate_ ? T{0} : kept;
  }
  output_.resize(input.rows(), input.cols());
  this->device_.MultiplyEach(input.size(), input.data(), factors_.data(), output_.data());
  return output_;
}

template <typename T>
void Dropout<T>::Backward(const Matrix<T>&, Matrix<T>& output_gradient, Matrix<T>* input_gradient) {
  if (input_gradient == nullptr) return;
  if (!drops_) {
    *input_gradient = output_gradient;
    return;
  }
  input_gradient->resize(output_gradient.rows(), output_gradient.cols());
  this->device_.MultiplyEach(output_gradient.size(), output_gradient.data(), factors_.data(),
                             input_gradient->data());
}

template class Dropout<float>;
template class Dropout<double>;

}  // namespace syncgrads
