// The inner loops of the CPU device, compiled for several instruction sets.

#ifndef SYNCGRADS_WORKER_NN_CPU_KERNELS_H_
#define SYNCGRADS_WORKER_NN_CPU_KERNELS_H_

#include <cstdint>

#include "worker/nn/matrix_product.h"

namespace syncgrads {

// Each function computes on one thread. Matrices are rows x columns, without gaps between rows.
// A flag `relu` says whether the activation is relu; otherwise there is none.
template <typename T>
struct CpuKernels {
  const char* instruction_set;
  void (*multiply)(const MatrixProduct<T>& product);
  // values = relu(values + bias[c]); `bias` may be null
  void (*add_bias)(int64_t rows, int64_t columns, const T* bias, bool relu, T* values);
  // sum = relu(a + b)
  void (*add)(int64_t count, const T* a, const T* b, bool relu, T* sum);
  // Replaces the gradient by 0 where the output of relu is 0.
  void (*relu_backward)(int64_t count, const T* outputs, T* gradient);
  // Adds the sums of the columns to `sums`. If `outputs` is not null, does relu_backward before.
  void (*sum_rows)(int64_t rows, int64_t columns, const T* outputs, T* values, double* sums);
  // Sets the mean of each column, and the sum of the squares of its differences from the mean.
  void (*find_moments)(int64_t rows, int64_t columns, const T* values, double* mean,
                       double* squares);
  // output = relu(values * factor[c] + addend[c] + residual); `residual` may be null
  void (*normalise)(int64_t rows, int64_t columns, const T* values, const T* factor,
                    const T* addend, const T* residual, bool relu, T* output);
  // sums[c] += sum over the rows of the gradient
  // products[c] += sum over the rows of gradient * (values - mean[c])
  // If `outputs` is not null, does relu_backward before.
  void (*sum_gradients)(int64_t rows, int64_t columns, const T* outputs, const T* values,
                        const T* mean, T* gradient, double* sums, double* products);
  // output = a * a_factor[c] + b * b_factor[c] + addend[c]
  void (*combine_rows)(int64_t rows, int64_t columns, const T* a, const T* a_factor, const T* b,
                       const T* b_factor, const T* addend, T* output);
  // The largest of the pixels at `pixels`, which has `rows` x `columns` pixels of an image whose
  // rows have `row_step` numbers, and its index in the image if the first pixel has index `first`;
  // both for each channel. The first of several that are equal counts. NaN is larger than a number,
  // and the last of several counts.
  void (*max_pixel)(int64_t rows, int64_t columns, int64_t channels, int64_t row_step,
                    int32_t first, const T* pixels, T* largest, int32_t* indices);
  // gradient += factor * values; returns the sum of the squares of `values`
  double (*penalise)(int64_t count, T factor, const T* values, T* gradient);
};

// Returns the kernels of the best instruction set that this processor has.
template <typename T>
const CpuKernels<T>& ChooseCpuKernels();

// The kernels of one instruction set each. Call only where the processor has it.
template <typename T>
const CpuKernels<T>& BaselineKernels();
template <typename T>
const CpuKernels<T>& Avx2Kernels();
template <typename T>
const CpuKernels<T>& Avx512Kernels();

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_CPU_KERNELS_H_
