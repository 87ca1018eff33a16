// The operations of a compute device, which layers are made of.

#ifndef SYNCGRADS_WORKER_NN_DEVICE_H_
#define SYNCGRADS_WORKER_NN_DEVICE_H_

#include <cstdint>

#include "common/update_rule.h"
#include "worker/nn/activation.h"
#include "worker/nn/device_memory.h"
#include "worker/nn/loss_kind.h"
#include "worker/nn/window.h"

namespace syncgrads {

// A matrix product: c = a b or, if `accumulate`, c += a b. a is rows x inner, b is inner x
// columns. All matrices are row-major; a stride is the distance between two rows in memory, in
// elements.
template <typename T>
struct MatrixProduct {
  int64_t rows = 0;     // of c
  int64_t columns = 0;  // of c
  int64_t inner = 0;
  const T* a = nullptr;
  int64_t a_stride = 0;
  bool transpose_a = false;  // in memory, a is inner x rows
  const T* b = nullptr;
  int64_t b_stride = 0;
  bool transpose_b = false;  // in memory, b is columns x inner
  T* c = nullptr;
  int64_t c_stride = 0;
  bool accumulate = false;
};

// The statistics of a batch that batch normalisation uses: one number for each channel.
template <typename T>
struct BatchMoments {
  T* mean = nullptr;
  T* inverse_deviation = nullptr;  // 1 / sqrt(variance + epsilon)
};

// A compute device: the operations that layers call, all of which are queued (see DeviceMemory).
//
// Pointers refer to the device's memory. Results must not overlap inputs unless the operation's
// comment allows it. Samples follow each other in memory; images are laid out as Shape
// describes. The same call gives the same bits every time.
//
// Not thread-safe.
template <typename T>
class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceMemory& memory() = 0;

  virtual void Multiply(const MatrixProduct<T>& product) = 0;

  // Adds `addend` to each row of `values`; a row has `columns` numbers.
  virtual void AddToRows(int64_t rows, int64_t columns, const T* addend, T* values) = 0;
  // Sets sums[i] to the sum of column i.
  virtual void SumRows(int64_t rows, int64_t columns, const T* values, T* sums) = 0;

  // sum = a + b, element by element; `sum` may be `a` or `b`.
  virtual void Add(int64_t count, const T* a, const T* b, T* sum) = 0;
  // product = a * b, element by element; `product` may be `a` or `b`.
  virtual void MultiplyEach(int64_t count, const T* a, const T* b, T* product) = 0;
  // sum += factor * a, element by element.
  virtual void AddScaled(int64_t count, T factor, const T* a, T* sum) = 0;
  // Updates a moving average, element by element: values += step * (factor * target - values).
  virtual void UpdateMovingAverage(int64_t count, T step, T factor, const T* target, T* values) = 0;

  virtual void Activate(Activation activation, int64_t count, T* values) = 0;
  // gradient *= f'(x), element by element, given outputs = f(x).
  virtual void MultiplyByDerivative(Activation activation, int64_t count, const T* outputs,
                                    T* gradient) = 0;

  // Sets factors[i] to 0 with probability `rate` and to 1 / (1 - rate) otherwise. The result is
  // a function of `key` and i; see UniformAt.
  virtual void DrawDropout(uint64_t key, double rate, int64_t count, T* factors) = 0;

  // Sets each number x of a column to 2 (x - minimum) / (maximum - minimum) - 1, or to 0 if the
  // column's maximum is not above its minimum.
  virtual void ScaleToRanges(int64_t rows, int64_t columns, const T* minimum, const T* maximum,
                             const T* input, T* output) = 0;
  virtual void ScaleToRangesBackward(int64_t rows, int64_t columns, const T* minimum,
                                     const T* maximum, const T* output_gradient,
                                     T* input_gradient) = 0;

  // Sets losses[row] to RowLoss, and `gradient` to the derivatives of the sum of the losses by
  // the outputs, divided by `divisor`.
  virtual void FindLosses(const RowLossRule& rule, int64_t rows, int64_t columns, const T* outputs,
                          const double* targets, double divisor, double* losses, T* gradient) = 0;
  // *sum += factor * (the sum of `values`)
  virtual void AddUp(int64_t count, double factor, const double* values, double* sum) = 0;

  // Updates `count` parameters and their slots in place. The bits are those of ApplyUpdate in
  // common/optim. `rule` must need no norms, `step` is at least 1, and `slots` has a pointer for
  // each slot of the rule.
  virtual void Update(const Optimizer& rule, uint64_t step, int64_t count, const T* gradient,
                      T* values, T* const* slots) = 0;

  // Cross-correlation. `weights` has shape [outputs, channels, height, width].
  virtual void Convolve(const Window& window, int64_t samples, int64_t outputs, const T* input,
                        const T* weights, T* output) = 0;
  // Sets the gradient by the weights and, if `input_gradient` is not null, by the input.
  virtual void ConvolveBackward(const Window& window, int64_t samples, int64_t outputs,
                                const T* input, const T* weights, const T* output_gradient,
                                T* weights_gradient, T* input_gradient) = 0;

  // Sets `output` to the largest number of each window, and `chosen` to the position of that
  // number in the sample. The first of equal numbers is chosen. A NaN counts as larger than any
  // number; of several NaNs the last one is chosen.
  virtual void MaxPool(const Window& window, int64_t samples, const T* input, T* output,
                       int32_t* chosen) = 0;
  virtual void MaxPoolBackward(const Window& window, int64_t samples, const int32_t* chosen,
                               const T* output_gradient, T* input_gradient) = 0;
  // Sets `output` to the mean of each window. Padding counts as zeros.
  virtual void AveragePool(const Window& window, int64_t samples, const T* input, T* output) = 0;
  virtual void AveragePoolBackward(const Window& window, int64_t samples, const T* output_gradient,
                                   T* input_gradient) = 0;

  // Sets the moments and the biased variance of each of `channels` columns.
  virtual void FindMoments(int64_t rows, int64_t channels, T epsilon, const T* input,
                           const BatchMoments<T>& moments, T* variance) = 0;
  // inverse_deviation = 1 / sqrt(variance + epsilon), element by element.
  virtual void InvertDeviations(int64_t channels, T epsilon, const T* variance,
                                T* inverse_deviation) = 0;
  // output = (input - mean) * inverse_deviation * scale + shift
  virtual void Normalise(int64_t rows, int64_t channels, const BatchMoments<T>& moments,
                         const T* scale, const T* shift, const T* input, T* output) = 0;
  // Sets the gradients by scale and shift and, if `input_gradient` is not null, by the input. If
  // `of_batch`, the moments are functions of the input; otherwise they are constants.
  virtual void NormaliseBackward(int64_t rows, int64_t channels, const BatchMoments<T>& moments,
                                 bool of_batch, const T* scale, const T* input,
                                 const T* output_gradient, T* scale_gradient, T* shift_gradient,
                                 T* input_gradient) = 0;

  // Convert images between interleaved channels (pixel by pixel) and planar channels (plane by
  // plane).
  virtual void PixelsToPlanes(const Shape& shape, int64_t samples, const T* pixels, T* planes) = 0;
  virtual void PlanesToPixels(const Shape& shape, int64_t samples, const T* planes, T* pixels) = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_DEVICE_H_
