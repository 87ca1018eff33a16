// The code of the kernels. Each instruction set includes it once, with SYNCGRADS_KERNELS defined
// as the name of the function to define and SYNCGRADS_EIGEN as a namespace for Eigen. Object
// files that are compiled for different processors must not share instances of Eigen's
// templates. For the same reason only those parts of the standard library may be used here that
// contain no code.

#ifndef SYNCGRADS_WORKER_NN_CPU_KERNELS_INL_H_
#define SYNCGRADS_WORKER_NN_CPU_KERNELS_INL_H_

#define Eigen SYNCGRADS_EIGEN
#include <eigen3/Eigen/Core>
#include <type_traits>

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

// NaN stays NaN, because the comparison is false.
template <bool relu, typename T>
T Activated(T value) {
  return relu && value <= 0 ? T{0} : value;
}

template <bool relu, typename T>
void AddToRows(int64_t rows, int64_t columns, const T* __restrict bias, T* __restrict values) {
  for (int64_t row = 0; row < rows; ++row, values += columns) {
    for (int64_t i = 0; i < columns; ++i) values[i] = Activated<relu>(values[i] + bias[i]);
  }
}

template <typename T>
void Relu(int64_t count, T* values) {
  for (int64_t i = 0; i < count; ++i) values[i] = Activated<true>(values[i]);
}

// A matrix with few columns is treated as one with wider rows, each of which is several of its
// rows: vector instructions would be used badly for short loops.
constexpr int64_t kNarrow = 32;
constexpr int64_t kWide = 64;

template <bool relu, typename T>
void AddToNarrowRows(int64_t rows, int64_t columns, const T* bias, T* values) {
  const int64_t together = kWide / columns;
  T wide[kWide];
  for (int64_t i = 0; i < together * columns; ++i) wide[i] = bias[i % columns];
  AddToRows<relu>(rows / together, together * columns, wide, values);
  const int64_t done = rows / together * together;
  AddToRows<relu>(rows - done, columns, bias, values + done * columns);
}

template <bool relu, typename T>
void AddBiasAs(int64_t rows, int64_t columns, const T* bias, T* values) {
  if (columns > 0 && columns < kNarrow) return AddToNarrowRows<relu>(rows, columns, bias, values);
  AddToRows<relu>(rows, columns, bias, values);
}

template <typename T>
void AddBias(int64_t rows, int64_t columns, const T* bias, bool relu, T* values) {
  if (bias != nullptr) {
    return relu ? AddBiasAs<true>(rows, columns, bias, values)
                : AddBiasAs<false>(rows, columns, bias, values);
  }
  if (relu) Relu(rows * columns, values);
}

template <bool relu, typename T>
void AddAs(int64_t count, const T* a, const T* b, T* sum) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) sum[i] = Activated<relu>(a[i] + b[i]);
}

template <typename T>
void Add(int64_t count, const T* a, const T* b, bool relu, T* sum) {
  return relu ? AddAs<true>(count, a, b, sum) : AddAs<false>(count, a, b, sum);
}

template <typename T>
void ReluBackward(int64_t count, const T* __restrict outputs, T* __restrict gradient) {
  for (int64_t i = 0; i < count; ++i) gradient[i] = outputs[i] > 0 ? gradient[i] : T{0};
}

// Sums are kept in T for this many rows and then added in double. This is fast, and accurate for
// any number of rows. The numbers of a tile stay in a cache between two passes over them.
constexpr int64_t kRowsInT = 64;
constexpr int64_t kColumnsAtATime = 128;

// Splits a matrix into tiles. Calls tile(index of the first number, first column, rows, columns)
// for each. The tiles of a column follow each other from the first row to the last.
template <typename Tile>
void ForEachTile(int64_t rows, int64_t columns, Tile tile) {
  for (int64_t first = 0; first < columns; first += kColumnsAtATime) {
    const int64_t count = columns - first < kColumnsAtATime ? columns - first : kColumnsAtATime;
    for (int64_t begin = 0; begin < rows; begin += kRowsInT) {
      const int64_t height = rows - begin < kRowsInT ? rows - begin : kRowsInT;
      tile(begin * columns + first, first, height, count);
    }
  }
}

template <bool relu, typename T>
void SumRowsAs(int64_t rows, int64_t columns, const T* __restrict outputs, T* __restrict values,
               double* __restrict sums) {
  ForEachTile(rows, columns, [=](int64_t at, int64_t first, int64_t height, int64_t count) {
    T partial[kColumnsAtATime];
    for (int64_t i = 0; i < count; ++i) partial[i] = 0;
    for (int64_t row = 0; row < height; ++row, at += columns) {
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) {
        if (relu) values[at + i] = outputs[at + i] > 0 ? values[at + i] : T{0};
        partial[i] += values[at + i];
      }
    }
    for (int64_t i = 0; i < count; ++i) sums[first + i] += partial[i];
  });
}

template <bool relu, typename T>
void SumNarrowRows(int64_t rows, int64_t columns, const T* outputs, T* values, double* sums) {
  const int64_t together = kWide / columns;
  double wide[kWide] = {};
  SumRowsAs<relu>(rows / together, together * columns, outputs, values, wide);
  for (int64_t i = 0; i < together * columns; ++i) sums[i % columns] += wide[i];
  const int64_t done = rows / together * together;
  const int64_t at = done * columns;
  SumRowsAs<relu>(rows - done, columns, relu ? outputs + at : nullptr, values + at, sums);
}

template <typename T>
void SumRows(int64_t rows, int64_t columns, const T* outputs, T* values, double* sums) {
  const bool is_narrow = columns > 0 && columns < kNarrow;
  if (outputs != nullptr) {
    return is_narrow ? SumNarrowRows<true>(rows, columns, outputs, values, sums)
                     : SumRowsAs<true>(rows, columns, outputs, values, sums);
  }
  return is_narrow ? SumNarrowRows<false>(rows, columns, outputs, values, sums)
                   : SumRowsAs<false>(rows, columns, outputs, values, sums);
}

// The moments of each tile, combined as in Chan, Golub and LeVeque 1983. In a tile, the differences
// from its first row are summed, so that no digits are lost if the mean is much larger than the
// deviation.
template <typename T>
void FindMoments(int64_t rows, int64_t columns, const T* __restrict values, double* __restrict mean,
                 double* __restrict squares) {
  for (int64_t i = 0; i < columns; ++i) mean[i] = squares[i] = 0;
  int64_t before = 0;  // rows above the tile
  ForEachTile(rows, columns, [&](int64_t begin, int64_t first, int64_t height, int64_t count) {
    if (begin == first) before = 0;
    T sum[kColumnsAtATime], square[kColumnsAtATime];
    for (int64_t i = 0; i < count; ++i) sum[i] = square[i] = 0;
    const T* __restrict pivot = values + begin;
    for (int64_t row = 1; row < height; ++row) {
      const T* __restrict at = pivot + row * columns;
      for (int64_t i = 0; i < count; ++i) {
        const T difference = at[i] - pivot[i];
        sum[i] += difference;
        square[i] += difference * difference;
      }
    }
    const double inverse = 1 / static_cast<double>(height);
    const double share = static_cast<double>(height) / static_cast<double>(before + height);
    const double weight = static_cast<double>(before) * share;
    double* __restrict means = mean + first;
    double* __restrict sums = squares + first;
    for (int64_t i = 0; i < count; ++i) {
      const double shift = sum[i] * inverse;
      const double own = square[i] - sum[i] * shift;
      const double difference = pivot[i] + shift - means[i];
      means[i] += difference * share;
      // Rounding must not make the tile's own part negative.
      sums[i] += (own < 0 ? 0 : own) + difference * difference * weight;
    }
    before += height;
  });
}

template <bool adds, bool relu, typename T>
void NormaliseAs(int64_t rows, int64_t columns, const T* __restrict values,
                 const T* __restrict factor, const T* __restrict addend,
                 const T* __restrict residual, T* __restrict output) {
  for (int64_t row = 0; row < rows; ++row, values += columns, output += columns) {
    for (int64_t i = 0; i < columns; ++i) {
      T value = values[i] * factor[i] + addend[i];
      if (adds) value += residual[i];
      output[i] = Activated<relu>(value);
    }
    if (adds) residual += columns;
  }
}

template <typename T>
void Normalise(int64_t rows, int64_t columns, const T* values, const T* factor, const T* addend,
               const T* residual, bool relu, T* output) {
  const auto normalise = residual != nullptr
                             ? (relu ? NormaliseAs<true, true, T> : NormaliseAs<true, false, T>)
                             : (relu ? NormaliseAs<false, true, T> : NormaliseAs<false, false, T>);
  normalise(rows, columns, values, factor, addend, residual, output);
}

template <bool relu, typename T>
void SumGradientsAs(int64_t rows, int64_t columns, const T* __restrict outputs,
                    const T* __restrict values, const T* __restrict mean, T* __restrict gradient,
                    double* __restrict sums, double* __restrict products) {
  ForEachTile(rows, columns, [=](int64_t at, int64_t first, int64_t height, int64_t count) {
    T sum[kColumnsAtATime], product[kColumnsAtATime];
    for (int64_t i = 0; i < count; ++i) sum[i] = product[i] = 0;
    for (int64_t row = 0; row < height; ++row, at += columns) {
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) {
        T slope = gradient[at + i];
        if (relu) {
          slope = outputs[at + i] > 0 ? slope : T{0};
          gradient[at + i] = slope;
        }
        sum[i] += slope;
        product[i] += slope * (values[at + i] - mean[first + i]);
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      sums[first + i] += sum[i];
      products[first + i] += product[i];
    }
  });
}

template <typename T>
void SumGradients(int64_t rows, int64_t columns, const T* outputs, const T* values, const T* mean,
                  T* gradient, double* sums, double* products) {
  if (outputs != nullptr) {
    return SumGradientsAs<true>(rows, columns, outputs, values, mean, gradient, sums, products);
  }
  SumGradientsAs<false, T>(rows, columns, nullptr, values, mean, gradient, sums, products);
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

// The order of the additions is the same with every instruction set: number i is added to lane
// i % kLanes.
template <typename T>
double Penalise(int64_t count, T factor, const T* __restrict values, T* __restrict gradient) {
  constexpr int64_t kLanes = 16;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const T value = values[i + lane];
      gradient[i + lane] += factor * value;
      lanes[lane] += static_cast<double>(value) * static_cast<double>(value);
    }
  }
  for (int64_t lane = 0; i < count; ++i, ++lane) {
    gradient[i] += factor * values[i];
    lanes[lane] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

// Numbers on which the operators work at once, and integers of their size: those of comparisons.
template <typename T, int lanes>
struct Lanes {
  using Integer = std::conditional_t<sizeof(T) == sizeof(int32_t), int32_t, int64_t>;
  typedef T Numbers __attribute__((vector_size(lanes * sizeof(T))));
  typedef Integer Integers __attribute__((vector_size(lanes * sizeof(T))));
};

// MaxPixel for `lanes` channels of `channels`. Without branches: which pixel is larger cannot be
// predicted.
template <int lanes, typename T>
void MaxPixelOfLanes(int64_t rows, int64_t columns, int64_t channels, int64_t row_step,
                     int32_t first, const T* pixels, T* largest, int32_t* indices) {
  using Numbers = typename Lanes<T, lanes>::Numbers;
  using Integers = typename Lanes<T, lanes>::Integers;
  using Integer = typename Lanes<T, lanes>::Integer;
  Numbers best;
  __builtin_memcpy(&best, pixels, sizeof best);
  Integers at{};
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t offset = row * row_step + column * channels;
      Numbers pixel;
      __builtin_memcpy(&pixel, pixels + offset, sizeof pixel);
      const Integers is_larger = (pixel > best) | (pixel != pixel);
      best = is_larger ? pixel : best;
      at = is_larger ? Integers{} + static_cast<Integer>(offset) : at;
    }
  }
  __builtin_memcpy(largest, &best, sizeof best);
  for (int lane = 0; lane < lanes; ++lane) {
    indices[lane] = first + lane + static_cast<int32_t>(at[lane]);
  }
}

template <typename T>
void MaxPixel(int64_t rows, int64_t columns, int64_t channels, int64_t row_step, int32_t first,
              const T* pixels, T* largest, int32_t* indices) {
  const auto find = [=](auto of_lanes, int64_t channel) {
    of_lanes(rows, columns, channels, row_step, first + static_cast<int32_t>(channel),
             pixels + channel, largest + channel, indices + channel);
  };
  int64_t channel = 0;
  for (; channel + 8 <= channels; channel += 8) find(MaxPixelOfLanes<8, T>, channel);
  if (channel == channels) return;
  // The last lanes may be computed twice.
  if (channels >= 8) return find(MaxPixelOfLanes<8, T>, channels - 8);
  for (; channel + 4 <= channels; channel += 4) find(MaxPixelOfLanes<4, T>, channel);
  if (channel == channels) return;
  if (channels >= 4) return find(MaxPixelOfLanes<4, T>, channels - 4);
  for (; channel < channels; ++channel) find(MaxPixelOfLanes<1, T>, channel);
}

template <typename T>
constexpr CpuKernels<T> MakeKernels(const char* instruction_set) {
  return {instruction_set, Multiply<T>,    AddBias<T>,     Add<T>,
          ReluBackward<T>, SumRows<T>,     FindMoments<T>, Normalise<T>,
          SumGradients<T>, CombineRows<T>, MaxPixel<T>,    Penalise<T>};
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
