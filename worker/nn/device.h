// Where layers compute.

#ifndef SYNCGRADS_WORKER_NN_DEVICE_H_
#define SYNCGRADS_WORKER_NN_DEVICE_H_

#include <cstdint>

#include "common/update_rule.h"
#include "worker/nn/activation.h"
#include "worker/nn/device_memory.h"
#include "worker/nn/loss_kind.h"
#include "worker/nn/window.h"

namespace syncgrads {

// c = a b, or c += a b. All row-major; the strides are the distances between
// rows, as the matrices lie in memory.
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

// What batch normalisation knows of a batch, a number for each channel.
template <typename T>
struct BatchMoments {
  T* mean = nullptr;
  T* inverse_deviation = nullptr;  // 1 / sqrt(variance + epsilon)
};

// The operations that layers are made of; each is queued, see DeviceMemory.
// Pointers are to the device's memory; results do not overlap inputs unless it is
// said. "Samples" lie behind each other; images as Shape says. The same call gives
// the same bits every time.
//
// Not thread-safe.
template <typename T>
class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceMemory& memory() = 0;

  virtual void Multiply(const MatrixProduct<T>& product) = 0;

  // values[row] += addend, for rows of `columns` numbers.
  virtual void AddToRows(int64_t rows, int64_t columns, const T* addend, T* values) = 0;
  // sums[column] = the sum of the column.
  virtual void SumRows(int64_t rows, int64_t columns, const T* values, T* sums) = 0;

  // sum = a + b; may be one of them.
  virtual void Add(int64_t count, const T* a, const T* b, T* sum) = 0;
  // product = a * b, number by number; may be one of them.
  virtual void MultiplyEach(int64_t count, const T* a, const T* b, T* product) = 0;
  // sum += factor * a
  virtual void AddScaled(int64_t count, T factor, const T* a, T* sum) = 0;
  // values += step * (factor * target - values)
  virtual void MoveTowards(int64_t count, T step, T factor, const T* target, T* values) = 0;

  virtual void Activate(Activation activation, int64_t count, T* values) = 0;
  // gradient *= f'(x), given outputs = f(x).
  virtual void MultiplyByDerivative(Activation activation, int64_t count, const T* outputs,
                                    T* gradient) = 0;

  // factors[i] is 0 with probability `rate` and else 1 / (1 - rate), a function of
  // `key` and i: see UniformAt.
  virtual void DrawDropout(uint64_t key, double rate, int64_t count, T* factors) = 0;

  // 2 (x - minimum) / (maximum - minimum) - 1 for each column, or 0 where the two
  // are equal.
  virtual void ScaleToRanges(int64_t rows, int64_t columns, const T* minimum, const T* maximum,
                             const T* input, T* output) = 0;
  virtual void ScaleToRangesBackward(int64_t rows, int64_t columns, const T* minimum,
                                     const T* maximum, const T* output_gradient,
                                     T* input_gradient) = 0;

  // Sets losses[row] to RowLoss, and `gradient` to the derivatives of their sum by
  // the outputs, divided by `divisor`.
  virtual void FindLosses(LossKind kind, int64_t rows, int64_t columns, const T* outputs,
                          const double* targets, double divisor, double* losses, T* gradient) = 0;
  // *sum += factor * (all of `values`)
  virtual void AddUp(int64_t count, double factor, const double* values, double* sum) = 0;

  // An update of `count` parameters and their slots, in place, with the bits of
  // ApplyUpdate, by a rule that needs no norms; both are in common/optim. `step` is at
  // least 1, `slots` are as many as the rule has.
  virtual void Update(const Optimizer& rule, uint64_t step, int64_t count, const T* gradient,
                      T* values, T* const* slots) = 0;

  // Cross-correlation: `weights` are [outputs, channels, height, width].
  virtual void Convolve(const Window& window, int64_t samples, int64_t outputs, const T* input,
                        const T* weights, T* output) = 0;
  // Sets the gradients by the weights and, unless null, by the input.
  virtual void ConvolveBackward(const Window& window, int64_t samples, int64_t outputs,
                                const T* input, const T* weights, const T* output_gradient,
                                T* weights_gradient, T* input_gradient) = 0;

  // `chosen` is where in the sample the largest number of each window is, the
  // first of equal ones. A NaN is larger than any number.
  virtual void MaxPool(const Window& window, int64_t samples, const T* input, T* output,
                       int32_t* chosen) = 0;
  virtual void MaxPoolBackward(const Window& window, int64_t samples, const int32_t* chosen,
                               const T* output_gradient, T* input_gradient) = 0;
  // Padding counts as zeros.
  virtual void AveragePool(const Window& window, int64_t samples, const T* input, T* output) = 0;
  virtual void AveragePoolBackward(const Window& window, int64_t samples, const T* output_gradient,
                                   T* input_gradient) = 0;

  // The moments of each of `channels` columns; `variance` is the biased one.
  virtual void FindMoments(int64_t rows, int64_t channels, T epsilon, const T* input,
                           const BatchMoments<T>& moments, T* variance) = 0;
  // 1 / sqrt(variance + epsilon)
  virtual void InvertDeviations(int64_t channels, T epsilon, const T* variance,
                                T* inverse_deviation) = 0;
  // output = (input - mean) * inverse_deviation * scale + shift
  virtual void Normalise(int64_t rows, int64_t channels, const BatchMoments<T>& moments,
                         const T* scale, const T* shift, const T* input, T* output) = 0;
  // Sets the gradients by scale, shift and, unless null, input. The moments are a
  // function of the input if `of_batch`, else given numbers.
  virtual void NormaliseBackward(int64_t rows, int64_t channels, const BatchMoments<T>& moments,
                                 bool of_batch, const T* scale, const T* input,
                                 const T* output_gradient, T* scale_gradient, T* shift_gradient,
                                 T* input_gradient) = 0;

  // From pixels with their channels side by side to one plane after the other,
  // and back.
  virtual void PixelsToPlanes(const Shape& shape, int64_t samples, const T* pixels, T* planes) = 0;
  virtual void PlanesToPixels(const Shape& shape, int64_t samples, const T* planes, T* pixels) = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_DEVICE_H_
