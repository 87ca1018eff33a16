// Functions that are applied to each number by itself.

#ifndef SYNCGRADS_WORKER_NN_ACTIVATION_H_
#define SYNCGRADS_WORKER_NN_ACTIVATION_H_

#include "worker/nn/matrix.h"

namespace syncgrads {

enum class Activation {
  kIdentity,
  kTanh,
  kRelu,     // max(0, x)
  kSigmoid,  // 1 / (1 + exp(-x))
};

// Replaces each number x by f(x). A number's result does not depend on where in
// the matrix it is.
template <typename T>
void Activate(Activation activation, Matrix<T>& values);

// Multiplies each number of `gradient` by the derivative f'(x), given `outputs` =
// f(x); of the same size. The derivative of relu at 0 is 0.
template <typename T>
void MultiplyByDerivative(Activation activation, const Matrix<T>& outputs, Matrix<T>& gradient);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_ACTIVATION_H_
