#include "worker/nn/activation.h"

#include <cmath>

namespace syncgrads {
namespace {

// Applies functions of the standard library to one number at a time. Vectorised functions differ
// in the last bit from the scalar code that handles the rest of an array.
template <typename T, typename Function>
void ForEach(int64_t count, T* values, Function function) {
  for (int64_t i = 0; i < count; ++i) values[i] = function(values[i]);
}

template <typename T, typename Function>
void MultiplyEach(int64_t count, const T* outputs, T* gradient, Function derivative) {
  for (int64_t i = 0; i < count; ++i) gradient[i] *= derivative(outputs[i]);
}

}  // namespace

template <typename T>
void Activate(Activation activation, int64_t count, T* values) {
  switch (activation) {
    case Activation::kIdentity:
      return;
    case Activation::kTanh:
      return ForEach(count, values, [](T x) { return std::tanh(x); });
    case Activation::kRelu:
      // NaN stays NaN, because the comparison is false.
      return ForEach(count, values, [](T x) { return x <= 0 ? T{0} : x; });
    case Activation::kSigmoid:
      return ForEach(count, values, [](T x) { return 1 / (1 + std::exp(-x)); });
  }
}

template <typename T>
void MultiplyByDerivative(Activation activation, int64_t count, const T* outputs, T* gradient) {
  switch (activation) {
    case Activation::kIdentity:
      return;
    case Activation::kTanh:
      return MultiplyEach(count, outputs, gradient, [](T y) { return 1 - y * y; });
    case Activation::kRelu:
      return MultiplyEach(count, outputs, gradient, [](T y) { return y > 0 ? T{1} : T{0}; });
    case Activation::kSigmoid:
      return MultiplyEach(count, outputs, gradient, [](T y) { return y * (1 - y); });
  }
}

template void Activate(Activation, int64_t, float*);
template void Activate(Activation, int64_t, double*);
template void MultiplyByDerivative(Activation, int64_t, const float*, float*);
template void MultiplyByDerivative(Activation, int64_t, const double*, double*);

}  // namespace syncgrads
