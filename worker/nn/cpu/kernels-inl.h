// The code of the kernels. Each instruction set includes it once, with SYNCGRADS_KERNELS defined
// as the name of the function to define and SYNCGRADS_EIGEN as a namespace for Eigen. Object
// files that are compiled for different processors must not share instances of Eigen's
// templates. For the same reason only those parts of the standard library may be used here that
// contain no code.

#ifndef SYNCGRADS_WORKER_NN_CPU_KERNELS_INL_H_
#define SYNCGRADS_WORKER_NN_CPU_KERNELS_INL_H_

#define Eigen SYNCGRADS_EIGEN
#include <eigen3/Eigen/Core>

#include "worker/nn/cpu/kernels.h"

namespace syncgrads {
namespace {

// Calls Eigen's blocked product directly. For small matrices and vectors, `a * b` chooses other
// code, whose bits depend on the alignment of the operands.
template <typename T, bool transpose_a, bool transpose_b>
void MultiplyAs(const MatrixProduct<T>& p) {
  using Eigen::ColMajor;
  using Eigen::Dynamic;
  using Eigen::RowMajor;
  // A matrix stored by rows is its transpose stored by columns.
  using Product = Eigen::internal::general_matrix_matrix_product<
      int64_t, T, transpose_a ? ColMajor : RowMajor, /*conjugate=*/false, T,
      transpose_b ? ColMajor : RowMajor, /*conjugate=*/false, RowMajor, /*step=*/1>;
  using Blocking = Eigen::internal::gemm_blocking_space<RowMajor, T, T, Dynamic, Dynamic, Dynamic>;
  if (!p.accumulate) {
    for (int64_t row = 0; row < p.rows; ++row) {
      T* c = p.c + row * p.c_stride;
      for (int64_t i = 0; i < p.columns; ++i) c[i] = 0;
    }
  }
  if (p.rows == 0 || p.columns == 0 || p.inner == 0) return;
  Blocking blocking(p.rows, p.columns, p.inner, /*threads=*/1, /*l3_blocking=*/true);
  Product::run(p.rows, p.columns, p.inner, p.a, p.a_stride, p.b, p.b_stride, p.c, /*step=*/1,
               p.c_stride, T{1}, blocking, /*threads=*/nullptr);
}

template <typename T>
void Multiply(const MatrixProduct<T>& p) {
  if (p.transpose_a) return p.transpose_b ? MultiplyAs<T, 1, 1>(p) : MultiplyAs<T, 1, 0>(p);
  return p.transpose_b ? MultiplyAs<T, 0, 1>(p) : MultiplyAs<T, 0, 0>(p);
}

template <typename T>
void AddToRows(int64_t rows, int64_t columns, const T* __restrict addend, T* __restrict values) {
  for (int64_t row = 0; row < rows; ++row, values += columns) {
    for (int64_t i = 0; i < columns; ++i) values[i] += addend[i];
  }
}

// Sums are kept in T for this many rows and then added in double. This is fast, and accurate for
// any number of rows.
constexpr int64_t kRowsInT = 64;
constexpr int64_t kColumnsAtATime = 256;

// Adds to sums[c] the sum over the rows of term(row * columns + c, c).
template <typename T, typename Term>
void SumTerms(int64_t rows, int64_t columns, double* sums, Term term) {
  T partial[kColumnsAtATime];
  for (int64_t first = 0; first < columns; first += kColumnsAtATime) {
    const int64_t count = columns - first < kColumnsAtATime ? columns - first : kColumnsAtATime;
    for (int64_t begin = 0; begin < rows; begin += kRowsInT) {
      const int64_t end = begin + kRowsInT < rows ? begin + kRowsInT : rows;
      for (int64_t i = 0; i < count; ++i) partial[i] = 0;
      for (int64_t row = begin; row < end; ++row) {
        const int64_t at = row * columns + first;
#pragma GCC ivdep
        for (int64_t i = 0; i < count; ++i) partial[i] += term(at + i, first + i);
      }
      for (int64_t i = 0; i < count; ++i) sums[first + i] += partial[i];
    }
  }
}

template <typename T>
void SumRows(int64_t rows, int64_t columns, const T* __restrict values, double* sums) {
  SumTerms<T>(rows, columns, sums, [values](int64_t at, int64_t) { return values[at]; });
}

template <typename T>
void SumSquares(int64_t rows, int64_t columns, const T* __restrict values, const T* __restrict mean,
                double* sums) {
  SumTerms<T>(rows, columns, sums, [values, mean](int64_t at, int64_t column) {
    const T difference = values[at] - mean[column];
    return difference * difference;
  });
}

template <typename T>
void SumProducts(int64_t rows, int64_t columns, const T* __restrict a, const T* __restrict b,
                 const T* __restrict mean, double* sums) {
  SumTerms<T>(rows, columns, sums,
              [a, b, mean](int64_t at, int64_t column) { return a[at] * (b[at] - mean[column]); });
}

template <typename T>
void Add(int64_t count, const T* a, const T* b, T* sum) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}

template <typename T>
void MultiplyEach(int64_t count, const T* a, const T* b, T* product) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) product[i] = a[i] * b[i];
}

template <typename T>
void Relu(int64_t count, T* values) {
  // NaN stays NaN, because the comparison is false.
  for (int64_t i = 0; i < count; ++i) values[i] = values[i] <= 0 ? T{0} : values[i];
}

template <typename T>
void ReluBackward(int64_t count, const T* __restrict outputs, T* __restrict gradient) {
  for (int64_t i = 0; i < count; ++i) gradient[i] = outputs[i] > 0 ? gradient[i] : T{0};
}

template <typename T>
void ScaleRows(int64_t rows, int64_t columns, const T* __restrict values,
               const T* __restrict factor, const T* __restrict addend, T* __restrict output) {
  for (int64_t row = 0; row < rows; ++row, values += columns, output += columns) {
    for (int64_t i = 0; i < columns; ++i) output[i] = values[i] * factor[i] + addend[i];
  }
}

template <typename T>
void CombineRows(int64_t rows, int64_t columns, const T* __restrict a, const T* __restrict a_factor,
                 const T* __restrict b, const T* __restrict b_factor, const T* __restrict addend,
                 T* __restrict output) {
  for (int64_t row = 0; row < rows; ++row, a += columns, b += columns, output += columns) {
    for (int64_t i = 0; i < columns; ++i) {
      output[i] = a[i] * a_factor[i] + b[i] * b_factor[i] + addend[i];
    }
  }
}

template <typename T>
constexpr CpuKernels<T> MakeKernels(const char* instruction_set) {
  return {instruction_set, Multiply<T>,     AddToRows<T>,   SumRows<T>,
          Add<T>,          MultiplyEach<T>, Relu<T>,        ReluBackward<T>,
          SumSquares<T>,   ScaleRows<T>,    SumProducts<T>, CombineRows<T>};
}

}  // namespace

template <typename T>
const CpuKernels<T>& SYNCGRADS_KERNELS() {
  static constexpr CpuKernels<T> kKernels = MakeKernels<T>(SYNCGRADS_INSTRUCTION_SET);
  return kKernels;
}

template const CpuKernels<float>& SYNCGRADS_KERNELS<float>();
template const CpuKernels<double>& SYNCGRADS_KERNELS<double>();

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_CPU_KERNELS_INL_H_
