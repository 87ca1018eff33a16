// The operations of a compute device, which layers are made of.

#ifndef SYNCGRADS_WORKER_NN_DEVICE_H_
#define SYNCGRADS_WORKER_NN_DEVICE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "common/update_rule.h"
#include "worker/nn/activation.h"
#include "worker/nn/device_memory.h"
#include "worker/nn/loss_kind.h"
#include "worker/nn/operands.h"
#include "worker/nn/window.h"

namespace syncgrads {

template <typename T>
class DeviceMatrix;

// A convolution: activation(cross-correlation of the input with the weights + bias).
template <typename T>
struct Convolution {
  Window window;
  int64_t outputs = 0;         // output channels
  const T* weights = nullptr;  // [outputs, channels, height, width]
  const T* bias = nullptr;     // [outputs]; null: none
  Activation activation = Activation::kIdentity;
  // If not null, memory in which Convolve keeps the weights in the device's own order, for
  // ConvolveBackward with the same weights, which reads it if it is not empty.
  DeviceMatrix<T>* packed = nullptr;
};

// A fully connected layer: activation(input * kernel + bias).
template <typename T>
struct Affine {
  int64_t inputs = 0;
  int64_t outputs = 0;
  const T* kernel = nullptr;  // [inputs, outputs]; with `transposed`, [outputs, inputs]
  bool transposed = false;
  const T* bias = nullptr;  // [outputs]; null: none
  Activation activation = Activation::kIdentity;
};

// A compute device: the operations of layers, all of which are queued (see DeviceMemory).
//
// Pointers refer to the device's memory. Results must not overlap inputs unless the operation's
// comment allows it. Samples follow each other in memory; images are laid out as Shape
// describes. The same calls give the same bits every time.
//
// Backward operations take the derivative of the loss by the outputs and *replace* it by the
// derivative by the argument of the activation; without an activation it stays as it is.
//
// Not thread-safe.
template <typename T>
class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceMemory& memory() = 0;

  virtual void Convolve(const Convolution<T>& layer, int64_t samples, const T* input,
                        T* output) = 0;
  virtual void ConvolveBackward(const Convolution<T>& layer, int64_t samples, const T* input,
                                const T* output, T* output_gradient,
                                const LayerGradients<T>& gradients) = 0;

  virtual void Multiply(const Affine<T>& layer, int64_t samples, const T* input, T* output) = 0;
  virtual void MultiplyBackward(const Affine<T>& layer, int64_t samples, const T* input,
                                const T* output, T* output_gradient,
                                const LayerGradients<T>& gradients) = 0;

  // Sets the mean and the variance of each of `channels` columns, in one pass over the input.
  virtual void FindStatistics(int64_t rows, int64_t channels, const T* input,
                              const BatchStatistics<T>& statistics) = 0;
  virtual void Normalise(const Normalisation<T>& layer, const T* input, T* output) = 0;
  // The gradients' weights and bias are those by scale and shift. The replaced `output_gradient`
  // is also the gradient by the residual. If `of_batch`, the statistics are functions of the
  // input; otherwise they are constants.
  virtual void NormaliseBackward(const Normalisation<T>& layer, bool of_batch, const T* input,
                                 const T* output, T* output_gradient,
                                 const LayerGradients<T>& gradients) = 0;

  // sum = activation(a + b), element by element; `sum` may be `a` or `b`.
  virtual void Add(Activation activation, int64_t count, const T* a, const T* b, T* sum) = 0;
  // gradient *= f'(x), element by element, given outputs = f(x).
  virtual void ActivateBackward(Activation activation, int64_t count, const T* outputs,
                                T* gradient) = 0;

  // Max pooling sets `chosen` to the position of the largest number in the sample. The first of
  // equal numbers is chosen. A NaN counts as larger than any number; of several NaNs the last
  // one is chosen. Average pooling does not use `chosen`.
  virtual void Pool(Pooling pooling, const Window& window, int64_t samples, const T* input,
                    T* output, int32_t* chosen) = 0;
  virtual void PoolBackward(Pooling pooling, const Window& window, int64_t samples,
                            const int32_t* chosen, const T* output_gradient, T* input_gradient) = 0;

  // Sets output[i] to 0 with probability `rate`, and to input[i] / (1 - rate) otherwise. The
  // choice is a function of `key` and i, see UniformAt: with the same key, the backward pass
  // is this operation on the gradient.
  virtual void Dropout(uint64_t key, double rate, int64_t count, const T* input, T* output) = 0;

  // Sets each number x to 2 (x - minimum) / (maximum - minimum) - 1, or to 0 if the column's
  // maximum is not above its minimum.
  virtual void ScaleToRanges(const RangeScaling<T>& layer, const T* input, T* output) = 0;
  virtual void ScaleToRangesBackward(const RangeScaling<T>& layer, const T* output_gradient,
                                     T* input_gradient) = 0;

  // Transposes each of `count` blocks from [rows, columns] to [columns, rows].
  virtual void Transpose(int64_t count, int64_t rows, int64_t columns, const T* from, T* to) = 0;

  // Adds the sum of RowLoss over the rows, divided by `divisor`, to *total, and sets `gradient`
  // to its derivatives by the outputs.
  virtual void FindLoss(const RowLossRule& rule, int64_t rows, int64_t columns, const T* outputs,
                        const double* targets, double divisor, double* total, T* gradient) = 0;

  // The l2 penalty of an array: gradient += l2 * values. The penalty itself, l2 / 2 times the
  // sum of squares, is kept until TakePenalties.
  virtual void Penalise(double l2, int64_t count, const T* values, T* gradient) = 0;
  // Adds the penalties of all Penalise since the last call to *total.
  virtual void TakePenalties(double* total) = 0;

  // Updates parameters and their slots in place. The bits are those of ApplyUpdate in
  // common/optim. `rule` must need no norms.
  virtual void Update(const Optimizer& rule, absl::Span<const ArrayUpdate<T>> arrays) = 0;
  // average += weight * (values - average), element by element.
  virtual void UpdateMovingAverage(T weight, int64_t count, const T* values, T* average) = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_DEVICE_H_
