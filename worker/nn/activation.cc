#include "worker/nn/activation.h"

#include <cmath>

namespace syncgrads {
namespace {

// The standard library's functions, one number at a time: Eigen's vectorised ones
// differ from their own scalar remainder in the last bit.
template <typename T, typename Function>
void ForEach(Matrix<T>& values, Function function) {
  for (Eigen::Index i = 0; i < values.size(); ++i) {
    values.data()[i] = function(values.data()[i]);
  }
}

template <typename T, typename Function>
void MultiplyEach(const Matrix<T>& outputs, Matrix<T>& gradient, Function derivative) {
  for (Eigen::Index i = 0; i < outputs.size(); ++i) {
    gradient.data()[i] *= derivative(outputs.data()[i]);
  }
}

}  // namespace

template <typename T>
void Activate(Activation activation, Matrix<T>& values) {
  switch (activation) {
    case Activation::kIdentity:
      return;
    case Activation::kTanh:
      return ForEach(values, [](T x) { return std::tanh(x); });
    case Activation::kRelu:
      // A NaN stays one.
      return ForEach(values, [](T x) { return x <= 0 ? T{0} : x; });
    case Activation::kSigmoid:
      return ForEach(values, [](T x) { return 1 / (1 + std::exp(-x)); });
  }
}

template <typename T>
void MultiplyByDerivative(Activation activation, const Matrix<T>& outputs, Matrix<T>& gradient) {
  switch (activation) {
    case Activation::kIdentity:
      return;
    case Activation::kTanh:
      return MultiplyEach(outputs, gradient, [](T y) { return 1 - y * y; });
    case Activation::kRelu:
      return MultiplyEach(outputs, gradient, [](T y) { return y > 0 ? T{1} : T{0}; });
    case Activation::kSigmoid:
      return MultiplyEach(outputs, gradient, [](T y) { return y * (1 - y); });
  }
}

template void Activate(Activation, Matrix<float>&);
template void Activate(Activation, Matrix<double>&);
template void MultiplyByDerivative(Activation, const Matrix<float>&, Matrix<float>&);
template void MultiplyByDerivative(Activation, const Matrix<double>&, Matrix<double>&);

}  // namespace syncgrads
