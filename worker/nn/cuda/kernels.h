// What a CUDA device computes besides matrix products. T is float or double.
//
// All are queued on `stream` and return what queuing them returned; what they mean
// is said in Device. No result depends on the order in which threads run: each
// number is set by one thread, which adds up in a fixed order.

#ifndef SYNCGRADS_WORKER_NN_CUDA_KERNELS_H_
#define SYNCGRADS_WORKER_NN_CUDA_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/update_rule.h"
#include "worker/nn/activation.h"
#include "worker/nn/loss_kind.h"

namespace syncgrads::cuda {

// A Window in numbers as short as devices like them. An image has less than 2^31
// numbers, and a batch less than 2^31 places of a window times the window's area.
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
cudaError_t MoveTowards(cudaStream_t stream, int64_t count, T step, T factor, const T* target,
                        T* values);
template <typename T>
cudaError_t Activate(cudaStream_t stream, Activation activation, int64_t count, T* values);
template <typename T>
cudaError_t MultiplyByDerivative(cudaStream_t stream, Activation activation, int64_t count,
                                 const T* outputs, T* gradient);
template <typename T>
cudaError_t DrawDropout(cudaStream_t stream, uint64_t key, double rate, int64_t count, T* factors);
// Multiplies by 2 / (maximum - minimum), or 0, after subtracting the minimum and
// before subtracting 1 if it `shifts`.
template <typename T>
cudaError_t ScaleToRanges(cudaStream_t stream, int64_t rows, int64_t columns, const T* minimum,
                          const T* maximum, bool shifts, const T* input, T* output);
template <typename T>
cudaError_t FindLosses(cudaStream_t stream, LossKind kind, int64_t rows, int64_t columns,
                       const T* outputs, const double* targets, double divisor, double* losses,
                       T* gradient);
cudaError_t AddUp(cudaStream_t stream, int64_t count, double factor, const double* values,
                  double* sum);
template <typename T>
cudaError_t Update(cudaStream_t stream, const Optimizer& rule, uint64_t step, int64_t count,
                   const T* gradient, T* values, T* const* slots);

// The windows of `samples` images as rows of window_height * window_width * channels
// numbers ("im2col"), and the sums of what is in the rows by where it came from.
template <typename T>
cudaError_t WindowsToRows(cudaStream_t stream, const Geometry& geometry, int64_t samples,
                          const T* images, T* rows);
template <typename T>
cudaError_t RowsToWindows(cudaStream_t stream, const Geometry& geometry, int64_t samples,
                          const T* rows, T* images);
// `count` blocks of [rows, columns] become [columns, rows].
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

// Sums of columns go through sums of strips of rows: `strips`, StripsFor(columns) *
// columns numbers, is overwritten.
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

// `sums`, 2 * channels numbers, is set to those that the input's gradient needs.
template <typename T>
cudaError_t NormaliseBackwardSums(cudaStream_t stream, int64_t rows, int64_t channels,
                                  const T* mean, const T* inverse_deviation, const T* input,
                                  const T* output_gradient, double* strips, double* sums,
                                  T* scale_gradient, T* shift_gradient);
// `factors`, 3 * channels numbers, is overwritten.
template <typename T>
cudaError_t NormaliseBackward(cudaStream_t stream, int64_t rows, int64_t channels, const T* mean,
                              const T* inverse_deviation, bool of_batch, const T* scale,
                              const T* input, const T* output_gradient, const double* sums,
                              T* factors, T* input_gradient);

}  // namespace syncgrads::cuda

#endif  // SYNCGRADS_WORKER_NN_CUDA_KERNELS_H_
