// The kernels of a CUDA device: all operations except matrix products. T is float or double.
//
// Each function queues its kernels on `stream` and returns CUDA's result of doing so. Device
// (worker/nn/device.h) describes what the operations compute. No result depends on the order in
// which threads run: each number is set by one thread, which adds in a fixed order.

#ifndef SYNCGRADS_WORKER_NN_CUDA_KERNELS_H_
#define SYNCGRADS_WORKER_NN_CUDA_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/update_rule.h"
#include "worker/nn/activation.h"
#include "worker/nn/loss_kind.h"

namespace syncgrads::cuda {

// A Window in 32-bit integers, which devices compute with faster. An image must have less than
// 2^31 numbers. The number of windows of a batch, times the window's area, must be less than
// 2^31.
struct Geometry {
  int channels;
  int height;
  int width;
  int window_height;
  int window_width;
  int stride;
  int padding;
  int output_height;
  int output_width;
};

template <typename T>
cudaError_t AddToRows(cudaStream_t stream, int64_t rows, int64_t columns, const T* addend,
                      T* values);
template <typename T>
cudaError_t Add(cudaStream_t stream, int64_t count, const T* a, const T* b, T* sum);
template <typename T>
cudaError_t MultiplyEach(cudaStream_t stream, int64_t count, const T* a, const T* b, T* product);
template <typename T>
cudaError_t AddScaled(cudaStream_t stream, int64_t count, T factor, const T* a, T* sum);
template <typename T>
cudaError_t UpdateMovingAverage(cudaStream_t stream, int64_t count, T step, T factor,
                                const T* target, T* values);
template <typename T>
cudaError_t Activate(cudaStream_t stream, Activation activation, int64_t count, T* values);
template <typename T>
cudaError_t MultiplyByDerivative(cudaStream_t stream, Activation activation, int64_t count,
                                 const T* outputs, T* gradient);
template <typename T>
cudaError_t DrawDropout(cudaStream_t stream, uint64_t key, double rate, int64_t count, T* factors);
// Multiplies by 2 / (maximum - minimum), or by 0 if the maximum is not above the minimum. With
// `shifts`, subtracts the minimum before that and 1 (or 0) after it.
template <typename T>
cudaError_t ScaleToRanges(cudaStream_t stream, int64_t rows, int64_t columns, const T* minimum,
                          const T* maximum, bool shifts, const T* input, T* output);
template <typename T>
cudaError_t FindLosses(cudaStream_t stream, RowLossRule rule, int64_t rows, int64_t columns,
                       const T* outputs, const double* targets, double divisor, double* losses,
                       T* gradient);
cudaError_t AddUp(cudaStream_t stream, int64_t count, double factor, const double* values,
                  double* sum);
template <typename T>
cudaError_t Update(cudaStream_t stream, const Optimizer& rule, uint64_t step, int64_t count,
                   const T* gradient, T* values, T* const* slots);

// im2col and col2im. Im2Col copies each window of `samples` images to a row of
// window_height * window_width * channels numbers. Col2Im sets each number of the images
// to the sum of the row elements that Im2Col copies it to.
template <typename T>
cudaError_t Im2Col(cudaStream_t stream, const Geometry& geometry, int64_t samples, const T* images,
                   T* rows);
template <typename T>
cudaError_t Col2Im(cudaStream_t stream, const Geometry& geometry, int64_t samples, const T* rows,
                   T* images);
// Transposes each of `count` blocks from [rows, columns] to [columns, rows].
template <typename T>
cudaError_t Transpose(cudaStream_t stream, int64_t count, int64_t rows, int64_t columns,
                      const T* from, T* to);

template <typename T>
cudaError_t MaxPool(cudaStream_t stream, const Geometry& geometry, int64_t samples, const T* input,
                    T* output, int32_t* chosen);
template <typename T>
cudaError_t MaxPoolBackward(cudaStream_t stream, const Geometry& geometry, int64_t samples,
                            const int32_t* chosen, const T* output_gradient, T* input_gradient);
template <typename T>
cudaError_t AveragePool(cudaStream_t stream, const Geometry& geometry, int64_t samples,
                        const T* input, T* output);
template <typename T>
cudaError_t AveragePoolBackward(cudaStream_t stream, const Geometry& geometry, int64_t samples,
                                const T* output_gradient, T* input_gradient);

// Column sums are computed in two steps: over strips of rows, then over the strips. StripsFor
// returns the number of strips. `strips` is scratch memory for StripsFor(rows, columns) *
// columns numbers.
int64_t StripsFor(int64_t rows, int64_t columns);
template <typename T>
cudaError_t SumRows(cudaStream_t stream, int64_t rows, int64_t columns, const T* values,
                    double* strips, T* sums);
template <typename T>
cudaError_t FindMoments(cudaStream_t stream, int64_t rows, int64_t channels, T epsilon,
                        const T* input, double* strips, T* mean, T* inverse_deviation, T* variance);
template <typename T>
cudaError_t InvertDeviations(cudaStream_t stream, int64_t channels, T epsilon, const T* variance,
                             T* inverse_deviation);
template <typename T>
cudaError_t Normalise(cudaStream_t stream, int64_t rows, int64_t channels, const T* mean,
                      const T* inverse_deviation, const T* scale, const T* shift, const T* input,
                      T* output);

// Computes the gradients by scale and shift, and sets `sums`, 2 * channels numbers, to the
// column sums that NormaliseBackward needs.
template <typename T>
cudaError_t NormaliseBackwardSums(cudaStream_t stream, int64_t rows, int64_t channels,
                                  const T* mean, const T* inverse_deviation, const T* input,
                                  const T* output_gradient, double* strips, double* sums,
                                  T* scale_gradient, T* shift_gradient);
// Computes the gradient by the input. `sums` are those of NormaliseBackwardSums; `factors` is
// scratch memory for 3 * channels numbers.
template <typename T>
cudaError_t NormaliseBackward(cudaStream_t stream, int64_t rows, int64_t channels, const T* mean,
                              const T* inverse_deviation, bool of_batch, const T* scale,
                              const T* input, const T* output_gradient, const double* sums,
                              T* factors, T* input_gradient);

}  // namespace syncgrads::cuda

#endif  // SYNCGRADS_WORKER_NN_CUDA_KERNELS_H_
