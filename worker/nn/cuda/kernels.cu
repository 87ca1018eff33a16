#include <cmath>

#include "worker/base/split_mix.h"
#include "worker/nn/cuda/kernels.h"
#include "worker/nn/cuda/launch.h"

namespace syncgrads::cuda {

template <typename T>
cudaError_t AddToRows(cudaStream_t stream, int64_t rows, int64_t columns, const T* addend,
                      T* values) {
  return ForEachPlace(stream, rows, columns, [=] __device__(int64_t row, int column) {
    values[row * columns + column] += addend[column];
  });
}

template <typename T>
cudaError_t Add(cudaStream_t stream, int64_t count, const T* a, const T* b, T* sum) {
  return ForEach(stream, count, [=] __device__(int64_t i) { sum[i] = a[i] + b[i]; });
}

template <typename T>
cudaError_t MultiplyEach(cudaStream_t stream, int64_t count, const T* a, const T* b, T* product) {
  return ForEach(stream, count, [=] __device__(int64_t i) { product[i] = a[i] * b[i]; });
}

template <typename T>
cudaError_t AddScaled(cudaStream_t stream, int64_t count, T factor, const T* a, T* sum) {
  return ForEach(stream, count, [=] __device__(int64_t i) { sum[i] += factor * a[i]; });
}

template <typename T>
cudaError_t UpdateMovingAverage(cudaStream_t stream, int64_t count, T step, T factor,
                                const T* target, T* values) {
  return ForEach(stream, count, [=] __device__(int64_t i) {
    values[i] += step * (factor * target[i] - values[i]);
  });
}

template <typename T>
cudaError_t Activate(cudaStream_t stream, Activation activation, int64_t count, T* values) {
  switch (activation) {
    case Activation::kIdentity:
      return cudaSuccess;
    case Activation::kTanh:
      return ForEach(stream, count,
                     [=] __device__(int64_t i) { values[i] = std::tanh(values[i]); });
    case Activation::kRelu:
      // NaN stays NaN, because the comparison is false.
      return ForEach(stream, count,
                     [=] __device__(int64_t i) { values[i] = values[i] <= 0 ? T{0} : values[i]; });
    case Activation::kSigmoid:
      return ForEach(stream, count,
                     [=] __device__(int64_t i) { values[i] = 1 / (1 + std::exp(-values[i])); });
  }
  return cudaErrorInvalidValue;
}

template <typename T>
cudaError_t MultiplyByDerivative(cudaStream_t stream, Activation activation, int64_t count,
                                 const T* outputs, T* gradient) {
  switch (activation) {
    case Activation::kIdentity:
      return cudaSuccess;
    case Activation::kTanh:
      return ForEach(stream, count,
                     [=] __device__(int64_t i) { gradient[i] *= 1 - outputs[i] * outputs[i]; });
    case Activation::kRelu:
      return ForEach(stream, count, [=] __device__(int64_t i) {
        gradient[i] = outputs[i] > 0 ? gradient[i] : T{0};
      });
    case Activation::kSigmoid:
      return ForEach(stream, count,
                     [=] __device__(int64_t i) { gradient[i] *= outputs[i] * (1 - outputs[i]); });
  }
  return cudaErrorInvalidValue;
}

template <typename T>
cudaError_t DrawDropout(cudaStream_t stream, uint64_t key, double rate, int64_t count, T* factors) {
  const T kept = static_cast<T>(1 / (1 - rate));
  return ForEach(stream, count, [=] __device__(int64_t i) {
    factors[i] = UniformAt(key, static_cast<uint64_t>(i)) < rate ? T{0} : kept;
  });
}

template <typename T>
cudaError_t ScaleToRanges(cudaStream_t stream, int64_t rows, int64_t columns, const T* minimum,
                          const T* maximum, bool shifts, const T* input, T* output) {
  return ForEachPlace(stream, rows, columns, [=] __device__(int64_t row, int column) {
    const T width = maximum[column] - minimum[column];
    const T scale = width > 0 ? 2 / width : T{0};
    const T offset = scale > 0 ? T{-1} : T{0};
    const int64_t i = row * columns + column;
    output[i] = shifts ? (input[i] - minimum[column]) * scale + offset : input[i] * scale;
  });
}

// One thread computes a row. Even with a thousand classes that takes a small part of the time of
// a convolution.
template <typename T>
cudaError_t FindLosses(cudaStream_t stream, RowLossRule rule, int64_t rows, int64_t columns,
                       const T* outputs, const double* targets, double divisor, double* losses,
                       T* gradient) {
  return ForEach(stream, rows, [=] __device__(int64_t row) {
    const T* output = outputs + row * columns;
    losses[row] = RowLoss(rule, columns, output, targets[row]);
    RowLossGradient(rule, columns, output, targets[row], divisor, gradient + row * columns);
  });
}

cudaError_t AddUp(cudaStream_t stream, int64_t count, double factor, const double* values,
                  double* sum) {
  return ForEach(stream, 1, [=] __device__(int64_t) {
    double total = 0;
    for (int64_t i = 0; i < count; ++i) total += values[i];
    *sum += factor * total;
  });
}

template <typename T>
cudaError_t Transpose(cudaStream_t stream, int64_t count, int64_t rows, int64_t columns,
                      const T* from, T* to) {
  const int high = static_cast<int>(rows);
  return ForEachPlace(stream, count * columns, rows, [=] __device__(int64_t line, int row) {
    const int64_t block = line / columns;
    const int64_t column = line - block * columns;
    to[line * high + row] = from[(block * high + row) * columns + column];
  });
}

#define SYNCGRADS_FOR_TYPE(T)                                                                  \
  template cudaError_t AddToRows(cudaStream_t, int64_t, int64_t, const T*, T*);                \
  template cudaError_t Add(cudaStream_t, int64_t, const T*, const T*, T*);                     \
  template cudaError_t MultiplyEach(cudaStream_t, int64_t, const T*, const T*, T*);            \
  template cudaError_t AddScaled(cudaStream_t, int64_t, T, const T*, T*);                      \
  template cudaError_t UpdateMovingAverage(cudaStream_t, int64_t, T, T, const T*, T*);         \
  template cudaError_t Activate(cudaStream_t, Activation, int64_t, T*);                        \
  template cudaError_t MultiplyByDerivative(cudaStream_t, Activation, int64_t, const T*, T*);  \
  template cudaError_t DrawDropout(cudaStream_t, uint64_t, double, int64_t, T*);               \
  template cudaError_t ScaleToRanges(cudaStream_t, int64_t, int64_t, const T*, const T*, bool, \
                                     const T*, T*);                                            \
  template cudaError_t FindLosses(cudaStream_t, RowLossRule, int64_t, int64_t, const T*,       \
                                  const double*, double, double*, T*);                         \
  template cudaError_t Transpose(cudaStream_t, int64_t, int64_t, int64_t, const T*, T*);
SYNCGRADS_FOR_TYPE(float)
SYNCGRADS_FOR_TYPE(double)
#undef SYNCGRADS_FOR_TYPE

}  // namespace syncgrads::cuda
