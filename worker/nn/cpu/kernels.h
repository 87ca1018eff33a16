// The inner loops of the CPU device, compiled for several instruction sets.

#ifndef SYNCGRADS_WORKER_NN_CPU_KERNELS_H_
#define SYNCGRADS_WORKER_NN_CPU_KERNELS_H_

#include <cstdint>

#include "worker/nn/device.h"

namespace syncgrads {

// Each function does, on one thread, what the function of Device with the same name does.
template <typename T>
struct CpuKernels {
  const char* instruction_set;
  void (*multiply)(const MatrixProduct<T>& product);
  void (*add_to_rows)(int64_t rows, int64_t columns, const T* addend, T* values);
  // Adds the column sums to `sums`.
  void (*sum_rows)(int64_t rows, int64_t columns, const T* values, double* sums);
  void (*add)(int64_t count, const T* a, const T* b, T* sum);
  void (*multiply_each)(int64_t count, const T* a, const T* b, T* product);
  void (*relu)(int64_t count, T* values);
  void (*relu_backward)(int64_t count, const T* outputs, T* gradient);
  // sums[c] += sum over the rows of (values - mean[c])^2
  void (*sum_squares)(int64_t rows, int64_t columns, const T* values, const T* mean, double* sums);
  // output = values * factor[c] + addend[c]
  void (*scale_rows)(int64_t rows, int64_t columns, const T* values, const T* factor,
                     const T* addend, T* output);
  // sums[c] += sum over the rows of a * (b - mean[c])
  void (*sum_products)(int64_t rows, int64_t columns, const T* a, const T* b, const T* mean,
                       double* sums);
  // output = a * a_factor[c] + b * b_factor[c] + addend[c]
  void (*combine_rows)(int64_t rows, int64_t columns, const T* a, const T* a_factor, const T* b,
                       const T* b_factor, const T* addend, T* output);
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
