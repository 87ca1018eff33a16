// Column sums, and batch normalisation, which is built on them.

#include <cmath>

#include "worker/nn/cuda/kernels.h"
#include "worker/nn/cuda/launch.h"

namespace syncgrads::cuda {
namespace {

// Sums are kept in T for this many rows and then added in double, as on the CPU.
constexpr int64_t kRowsInT = 64;
// The most strips times columns: enough threads to fill a device.
constexpr int64_t kMostSums = 1 << 16;
constexpr int64_t kMostStrips = 512;

template <typename T>
struct Values {
  const T* values;
  __device__ T operator()(int64_t i, int) const { return values[i]; }
};

template <typename T>
struct SquaresFromMean {
  const T* values;
  const T* mean;
  __device__ T operator()(int64_t i, int column) const {
    const T difference = values[i] - mean[column];
    return difference * difference;
  }
};

template <typename T>
struct ProductsFromMean {
  const T* a;
  const T* b;
  const T* mean;
  __device__ T operator()(int64_t i, int column) const { return a[i] * (b[i] - mean[column]); }
};

template <typename T, typename Term>
struct SumOfStrip {
  int64_t rows, columns, length;
  Term term;
  double* strips;
  __device__ void operator()(int64_t strip, int column) const {
    const int64_t begin = strip * length;
    const int64_t end = begin + length < rows ? begin + length : rows;
    double total = 0;
    for (int64_t row = begin; row < end;) {
      const int64_t stop = row + kRowsInT < end ? row + kRowsInT : end;
      T sum = 0;
      for (; row < stop; ++row) sum += term(row * columns + column, column);
      total += sum;
    }
    strips[strip * columns + column] = total;
  }
};

template <typename Finish>
struct SumOfStrips {
  int64_t strip_count, columns;
  const double* strips;
  Finish finish;
  __device__ void operator()(int64_t column) const {
    double total = 0;
    for (int64_t strip = 0; strip < strip_count; ++strip) {
      total += strips[strip * columns + column];
    }
    finish(column, total);
  }
};

// Calls finish(column, sum over the rows of term(index, column)) for each column.
template <typename T, typename Term, typename Finish>
cudaError_t SumColumns(cudaStream_t stream, int64_t rows, int64_t columns, const Term& term,
                       double* strips, const Finish& finish) {
  const int64_t count = StripsFor(rows, columns);
  const int64_t length = (rows + count - 1) / count;
  const cudaError_t error = ForEachPlace(stream, count, columns,
                                         SumOfStrip<T, Term>{rows, columns, length, term, strips});
  if (error != cudaSuccess) return error;
  return ForEach(stream, columns, SumOfStrips<Finish>{count, columns, strips, finish});
}

template <typename T>
struct SetSum {
  T* sums;
  __device__ void operator()(int64_t column, double sum) const {
    sums[column] = static_cast<T>(sum);
  }
};

template <typename T>
struct SetMean {
  double count;
  T* mean;
  __device__ void operator()(int64_t column, double sum) const {
    mean[column] = static_cast<T>(sum / count);
  }
};

template <typename T>
struct SetDeviation {
  double count, epsilon;
  T* variance;
  T* inverse_deviation;
  __device__ void operator()(int64_t column, double sum) const {
    variance[column] = static_cast<T>(sum / count);
    inverse_deviation[column] = static_cast<T>(1 / std::sqrt(sum / count + epsilon));
  }
};

template <typename T>
struct SetShiftGradient {
  double* sums;
  T* gradient;
  __device__ void operator()(int64_t column, double sum) const {
    sums[column] = sum;
    gradient[column] = static_cast<T>(sum);
  }
};

template <typename T>
struct SetScaleGradient {
  const T* inverse_deviation;
  double* sums;
  T* gradient;
  __device__ void operator()(int64_t column, double sum) const {
    sums[column] = sum;
    gradient[column] = static_cast<T>(sum * inverse_deviation[column]);
  }
};

}  // namespace

int64_t StripsFor(int64_t rows, int64_t columns) {
  int64_t strips = kMostSums / (columns > 0 ? columns : 1);
  if (strips > kMostStrips) strips = kMostStrips;
  if (strips > (rows + kRowsInT - 1) / kRowsInT) strips = (rows + kRowsInT - 1) / kRowsInT;
  return strips > 0 ? strips : 1;
}

template <typename T>
cudaError_t SumRows(cudaStream_t stream, int64_t rows, int64_t columns, const T* values,
                    double* strips, T* sums) {
  return SumColumns<T>(stream, rows, columns, Values<T>{values}, strips, SetSum<T>{sums});
}

template <typename T>
cudaError_t FindMoments(cudaStream_t stream, int64_t rows, int64_t channels, T epsilon,
                        const T* input, double* strips, T* mean, T* inverse_deviation,
                        T* variance) {
  const double count = static_cast<double>(rows);
  const cudaError_t error =
      SumColumns<T>(stream, rows, channels, Values<T>{input}, strips, SetMean<T>{count, mean});
  if (error != cudaSuccess) return error;
  return SumColumns<T>(
      stream, rows, channels, SquaresFromMean<T>{input, mean}, strips,
      SetDeviation<T>{count, static_cast<double>(epsilon), variance, inverse_deviation});
}

template <typename T>
cudaError_t InvertDeviations(cudaStream_t stream, int64_t channels, T epsilon, const T* variance,
                             T* inverse_deviation) {
  return ForEach(stream, channels, [=] __device__(int64_t c) {
    inverse_deviation[c] = 1 / std::sqrt(variance[c] + epsilon);
  });
}

template <typename T>
cudaError_t Normalise(cudaStream_t stream, int64_t rows, int64_t channels, const T* mean,
                      const T* inverse_deviation, const T* scale, const T* shift, const T* input,
                      T* output) {
  return ForEachPlace(stream, rows, channels, [=] __device__(int64_t row, int c) {
    const T factor = scale[c] * inverse_deviation[c];
    const T addend = shift[c] - mean[c] * factor;
    output[row * channels + c] = input[row * channels + c] * factor + addend;
  });
}

template <typename T>
cudaError_t NormaliseBackwardSums(cudaStream_t stream, int64_t rows, int64_t channels,
                                  const T* mean, const T* inverse_deviation, const T* input,
                                  const T* output_gradient, double* strips, double* sums,
                                  T* scale_gradient, T* shift_gradient) {
  const cudaError_t error = SumColumns<T>(stream, rows, channels, Values<T>{output_gradient},
                                          strips, SetShiftGradient<T>{sums, shift_gradient});
  if (error != cudaSuccess) return error;
  return SumColumns<T>(stream, rows, channels, ProductsFromMean<T>{output_gradient, input, mean},
                       strips,
                       SetScaleGradient<T>{inverse_deviation, sums + channels, scale_gradient});
}

// Ioffe and Szegedy 2015; the formula is at CpuDevice::NormaliseBackward.
template <typename T>
cudaError_t NormaliseBackward(cudaStream_t stream, int64_t rows, int64_t channels, const T* mean,
                              const T* inverse_deviation, bool of_batch, const T* scale,
                              const T* input, const T* output_gradient, const double* sums,
                              T* factors, T* input_gradient) {
  const double count = static_cast<double>(rows);
  const cudaError_t error = ForEach(stream, channels, [=] __device__(int64_t c) {
    const double inverse = inverse_deviation[c];
    const double factor = scale[c] * inverse;
    const double slope = of_batch ? -factor * inverse * inverse * sums[channels + c] / count : 0.0;
    factors[c] = static_cast<T>(factor);
    factors[channels + c] = static_cast<T>(slope);
    factors[2 * channels + c] =
        of_batch ? static_cast<T>(-factor * sums[c] / count - slope * mean[c]) : T{0};
  });
  if (error != cudaSuccess) return error;
  return ForEachPlace(stream, rows, channels, [=] __device__(int64_t row, int c) {
    const int64_t i = row * channels + c;
    input_gradient[i] = output_gradient[i] * factors[c] + input[i] * factors[channels + c] +
                        factors[2 * channels + c];
  });
}

#define SYNCGRADS_FOR_TYPE(T)                                                                      \
  template cudaError_t SumRows(cudaStream_t, int64_t, int64_t, const T*, double*, T*);             \
  template cudaError_t FindMoments(cudaStream_t, int64_t, int64_t, T, const T*, double*, T*, T*,   \
                                   T*);                                                            \
  template cudaError_t InvertDeviations(cudaStream_t, int64_t, T, const T*, T*);                   \
  template cudaError_t Normalise(cudaStream_t, int64_t, int64_t, const T*, const T*, const T*,     \
                                 const T*, const T*, T*);                                          \
  template cudaError_t NormaliseBackwardSums(cudaStream_t, int64_t, int64_t, const T*, const T*,   \
                                             const T*, const T*, double*, double*, T*, T*);        \
  template cudaError_t NormaliseBackward(cudaStream_t, int64_t, int64_t, const T*, const T*, bool, \
                                         const T*, const T*, const T*, const double*, T*, T*);
SYNCGRADS_FOR_TYPE(float)
SYNCGRADS_FOR_TYPE(double)
#undef SYNCGRADS_FOR_TYPE

}  // namespace syncgrads::cuda
