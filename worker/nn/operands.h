// What the operations of a device (device.h) compute with.
//
// This file is compiled for the host and for CUDA.

#ifndef SYNCGRADS_WORKER_NN_OPERANDS_H_
#define SYNCGRADS_WORKER_NN_OPERANDS_H_

#include <cstdint>

#include "worker/nn/activation.h"

namespace syncgrads {

// An activation, or the gradient of the loss by one, as a device stores it in its memory. Only the
// device knows the type, and converts addresses of Stored<T>. The processor's is T. Parameters,
// their gradients and statistics are always T.
template <typename T>
struct Stored;

// Where a backward pass puts the gradients by the parameters and by the input of a layer.
template <typename T>
struct LayerGradients {
  T* weights = nullptr;        // in the layout of the weights
  T* bias = nullptr;           // null if the layer has no bias
  Stored<T>* input = nullptr;  // null: not needed
};

// The statistics of a batch, one number for each channel.
template <typename T>
struct BatchStatistics {
  T* mean = nullptr;
  T* variance = nullptr;  // the biased variance
  // The running statistics, which are updated with the mean and the unbiased variance:
  // running += momentum * (batch - running). Null: there are none.
  T* running_mean = nullptr;
  T* running_variance = nullptr;
  double momentum = 0;
};

// A batch normalisation of `rows` x `channels` numbers with given statistics:
// activation((x - mean) / sqrt(variance + epsilon) * scale + shift + residual).
template <typename T>
struct Normalisation {
  int64_t rows = 0;
  int64_t channels = 0;
  double epsilon = 0;
  const T* mean = nullptr;
  const T* variance = nullptr;
  const T* scale = nullptr;
  const T* shift = nullptr;
  const Stored<T>* residual = nullptr;  // rows x channels; null: none
  Activation activation = Activation::kIdentity;
};

enum class Pooling {
  kMax,      // the largest number of each window; see Device::Pool
  kAverage,  // the mean of each window; padding counts as zeros
};

// Scaling to the range [-1, 1], for each of `columns` columns.
template <typename T>
struct RangeScaling {
  int64_t rows = 0;
  int64_t columns = 0;
  const T* minimum = nullptr;
  const T* maximum = nullptr;
};

// The number of slots of the update rule that has the most.
inline constexpr int kMostSlots = 2;

// An update of one array of parameters with its gradient.
template <typename T>
struct ArrayUpdate {
  uint64_t step = 0;  // the number of this update of the array, from 1 on
  int64_t count = 0;
  const T* gradient = nullptr;
  T* values = nullptr;
  T* slots[kMostSlots] = {};  // those of the update rule
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_OPERANDS_H_
