#include "worker/nn/dense.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "worker/base/random.h"

namespace syncgrads {

template <typename T>
Dense<T>::Dense(const std::string& name, int64_t inputs, int64_t outputs, Activation activation)
    : activation_(activation) {
  kernel_.name = absl::StrCat(name, "/kernel");
  kernel_.shape = {inputs, outputs};
  kernel_.values = Matrix<T>::Zero(inputs, outputs);
  kernel_.gradient = Matrix<T>::Zero(inputs, outputs);
  kernel_.penalised = true;
  bias_.name = absl::StrCat(name, "/bias");
  bias_.shape = {outputs};
  bias_.values = Matrix<T>::Zero(1, outputs);
  bias_.gradient = Matrix<T>::Zero(1, outputs);
}

template <typename T>
void Dense<T>::Initialise(uint64_t seed) {
  const double limit = std::sqrt(6.0 / static_cast<double>(inputs() + outputs()));
  RandomStream random(seed, {HashBytes(kernel_.name)});
  for (Eigen::Index i = 0; i < kernel_.values.size(); ++i) {
    kernel_.values.data()[i] = static_cast<T>(limit * (2 * random.NextUniform() - 1));
  }
  bias_.values.setZero();
}

template <typename T>
const Matrix<T>& Dense<T>::Forward(const Matrix<T>& input) {
  output_.noalias() = input * kernel_.values;
  output_.rowwise() += bias_.values.row(0);
  Activate(activation_, output_);
  return output_;
}

template <typename T>
void Dense<T>::Backward(const Matrix<T>& input, Matrix<T>& output_gradient,
                        Matrix<T>* input_gradient) {
  MultiplyByDerivative(activation_, output_, output_gradient);
  kernel_.gradient.noalias() = input.transpose() * output_gradient;
  bias_.gradient.setZero();
  for (Eigen::Index row = 0; row < output_gradient.rows(); ++row) {
    bias_.gradient.row(0) += output_gradient.row(row);
  }
  if (input_gradient != nullptr) {
    input_gradient->noalias() = output_gradient * kernel_.values.transpose();
  }
}

template class Dense<float>;
template class Dense<double>;

}  // namespace syncgrads
