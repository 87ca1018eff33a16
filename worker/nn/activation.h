// Activation functions, applied element by element.

#ifndef SYNCGRADS_WORKER_NN_ACTIVATION_H_
#define SYNCGRADS_WORKER_NN_ACTIVATION_H_

#include <cstdint>

namespace syncgrads {

enum class Activation {
  kIdentity,
  kTanh,
  kRelu,     // max(0, x)
  kSigmoid,  // 1 / (1 + exp(-x))
};

// Replaces each of `count` numbers x by f(x). The result for a number does not depend on its
// position in the array.
template <typename T>
void Activate(Activation activation, int64_t count, T* values);

// Multiplies each number of `gradient` by the derivative f'(x), given `outputs` =
// f(x). The derivative of relu at 0 is 0.
template <typename T>
void MultiplyByDerivative(Activation activation, int64_t count, const T* outputs, T* gradient);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_ACTIVATION_H_
