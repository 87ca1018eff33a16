// Activation functions of one number, for kernels.

#ifndef SYNCGRADS_WORKER_NN_CUDA_ACTIVATION_FUNCTIONS_H_
#define SYNCGRADS_WORKER_NN_CUDA_ACTIVATION_FUNCTIONS_H_

#include <cuda_runtime.h>

#include <cmath>

#include "worker/nn/activation.h"

namespace syncgrads::cuda {

// Returns f(x).
template <typename T>
__device__ inline T Activated(Activation activation, T x) {
  switch (activation) {
    case Activation::kIdentity:
      return x;
    case Activation::kTanh:
      return std::tanh(x);
    case Activation::kRelu:
      return x <= 0 ? T{0} : x;  // NaN stays NaN, because the comparison is false
    case Activation::kSigmoid:
      return 1 / (1 + std::exp(-x));
  }
  return x;
}

// Returns gradient * f'(x), given y = f(x).
template <typename T>
__device__ inline T ActivatedBackward(Activation activation, T y, T gradient) {
  switch (activation) {
    case Activation::kIdentity:
      return gradient;
    case Activation::kTanh:
      return gradient * (1 - y * y);
    case Activation::kRelu:
      return y > 0 ? gradient : T{0};
    case Activation::kSigmoid:
      return gradient * (y * (1 - y));
  }
  return gradient;
}

// An activation function as an argument of a generic function.
template <Activation value>
struct ActivationKind {};

// Calls function(ActivationKind<activation>()), so that no loop in it has to choose.
template <typename Function>
__device__ inline void WithActivation(Activation activation, Function function) {
  switch (activation) {
    case Activation::kIdentity:
      return function(ActivationKind<Activation::kIdentity>());
    case Activation::kTanh:
      return function(ActivationKind<Activation::kTanh>());
    case Activation::kRelu:
      return function(ActivationKind<Activation::kRelu>());
    case Activation::kSigmoid:
      return function(ActivationKind<Activation::kSigmoid>());
  }
}

}  // namespace syncgrads::cuda

#endif  // SYNCGRADS_WORKER_NN_CUDA_ACTIVATION_FUNCTIONS_H_
