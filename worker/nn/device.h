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
  // As for a convolution: memory for the kernel in the type that the device multiplies.
  DeviceMatrix<T>* packed = nullptr;
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
// Activations and gradients by them are Stored<T>. All other numbers are T, and sums are computed
// in T or more precisely.
//
// Not thread-safe.
template <typename T>
class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceMemory& memory() = 0;

  // The bytes of a Stored<T>.
  virtual int64_t stored_bytes() const { return sizeof(T); }
  // Convert `count` numbers in the device's memory.
  virtual void Store(int64_t count, const T* from, Stored<T>* to) = 0;
  virtual void Load(int64_t count, const Stored<T>* from, T* to) = 0;
  // Stores numbers[channel][pixel] for each of `count` pixels; the channel of pixel i is i modulo
  // `channels`, and `numbers` is [channels, kPixelValues].
  virtual void StorePixels(int64_t count, int64_t channels, const unsigned char* pixels,
                           const T* numbers, Stored<T>* to) = 0;

  virtual void Convolve(const Convolution<T>& layer, int64_t samples, const Stored<T>* input,
                        Stored<T>* output) = 0;
  virtual void ConvolveBackward(const Convolution<T>& layer, int64_t samples,
                                const Stored<T>* input, const Stored<T>* output,
                                Stored<T>* output_gradient, const LayerGradients<T>& gradients) = 0;

  virtual void Multiply(const Affine<T>& layer, int64_t samples, const Stored<T>* input,
                        Stored<T>* output) = 0;
  virtual void MultiplyBackward(const Affine<T>& layer, int64_t samples, const Stored<T>* input,
                                const Stored<T>* output, Stored<T>* output_gradient,
                                const LayerGradients<T>& gradients) = 0;

  // Sets the mean and the variance of each of `channels` columns, in one pass over the input.
  virtual void FindStatistics(int64_t rows, int64_t channels, const Stored<T>* input,
                              const BatchStatistics<T>& statistics) = 0;
  virtual void Normalise(const Normalisation<T>& layer, const Stored<T>* input,
                         Stored<T>* output) = 0;
  // The gradients' weights and bias are those by scale and shift. The replaced `output_gradient`
  // is also the gradient by the residual. If `of_batch`, the statistics are functions of the
  // input; otherwise they are constants.
  virtual void NormaliseBackward(const Normalisation<T>& layer, bool of_batch,
                                 const Stored<T>* input, const Stored<T>* output,
                                 Stored<T>* output_gradient,
                                 const LayerGradients<T>& gradients) = 0;

  // sum = activation(a + b), element by element; `sum` may be `a` or `b`.
  virtual void Add(Activation activation, int64_t count, const Stored<T>* a, const Stored<T>* b,
                   Stored<T>* sum) = 0;
  // gradient *= f'(x), element by element, given outputs = f(x).
  virtual void ActivateBackward(Activation activation, int64_t count, const Stored<T>* outputs,
                                Stored<T>* gradient) = 0;

  // Max pooling sets `chosen` to the position of the largest number in the sample. The first of
  // equal numbers is chosen. A NaN counts as larger than any number; of several NaNs the last
  // one is chosen. Average pooling does not use `chosen`.
  virtual void Pool(Pooling pooling, const Window& window, int64_t samples, const Stored<T>* input,
                    Stored<T>* output, int32_t* chosen) = 0;
  virtual void PoolBackward(Pooling pooling, const Window& window, int64_t samples,
                            const int32_t* chosen, const Stored<T>* output_gradient,
                            Stored<T>* input_gradient) = 0;

  // Sets output[i] to 0 with probability `rate`, and to input[i] / (1 - rate) otherwise. The
  // choice is a function of `key` and i, see UniformAt: with the same key, the backward pass
  // is this operation on the gradient.
  virtual void Dropout(uint64_t key, double rate, int64_t count, const Stored<T>* input,
                       Stored<T>* output) = 0;

  // Sets each number x to 2 (x - minimum) / (maximum - minimum) - 1, or to 0 if the column's
  // maximum is not above its minimum.
  virtual void ScaleToRanges(const RangeScaling<T>& layer, const Stored<T>* input,
                             Stored<T>* output) = 0;
  virtual void ScaleToRangesBackward(const RangeScaling<T>& layer, const Stored<T>* output_gradient,
                                     Stored<T>* input_gradient) = 0;

  // Transposes each of `count` blocks from [rows, columns] to [columns, rows].
  virtual void Transpose(int64_t count, int64_t rows, int64_t columns, const Stored<T>* from,
                         Stored<T>* to) = 0;

  // Adds the sum of RowLoss over the rows, divided by `divisor`, to *total, and sets `gradient`
  // to its derivatives by the outputs.
  virtual void FindLoss(const RowLossRule& rule, int64_t rows, int64_t columns,
                        const Stored<T>* outputs, const double* targets, double divisor,
                        double* total, Stored<T>* gradient) = 0;

  // The l2 penalty of an array: gradient += l2 * values. The penalty itself, l2 / 2 times the
  // sum of squares, is kept until TakePenalties.
  virtual void Penalise(double l2, int64_t count, const T* values, T* gradient) = 0;
  // Adds the penalties of all Penalise since the last call to *total.
  virtual void TakePenalties(double* total) = 0;

  // Updates parameters and their slots in place. The bits are those of ApplyUpdate in
  // common/optim. `rule` must need no norms.
  virtual void Update(const Optimizer& rule, absl::Span<const ArrayUpdate<T>> arrays) = 0;
  // sum += values, element by element. No activations.
  virtual void Accumulate(int64_t count, const T* values, T* sum) = 0;
  // average += weight * (values - average), element by element.
  virtual void UpdateMovingAverage(T weight, int64_t count, const T* values, T* average) = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_DEVICE_H_
