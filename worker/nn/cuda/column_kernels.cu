// Column sums, and what is built on them: batch normalisation, and gradients of biases.

#include <cmath>

#include "worker/nn/cuda/activation_functions.h"
#include "worker/nn/cuda/kernels.h"
#include "worker/nn/cuda/launch.h"

namespace syncgrads::cuda {
namespace {

// A column is summed in three steps: over strips of rows, over groups of strips, and over the
// groups. The sums of a strip are kept in T for kRowsInT rows and then added in double.
constexpr int64_t kRowsInT = 64;
// A strip has at least this many rows; shorter ones are not worth their memory.
constexpr int64_t kLeastRows = 16;
// The most threads that sum strips. Each has four loads of 16 bytes in flight, so that these
// threads use the whole bandwidth of a device.
constexpr int64_t kMostThreads = 1 << 16;
constexpr int64_t kStripsInGroup = 64;

// How the rows are split. Two sums of each column of each strip are kept, then two of each group.
struct Strips {
  int64_t rows, columns;
  int64_t length;  // rows of a strip
  int64_t strips, groups;

  // A thread sums `pack` columns, if `columns` is a multiple of it.
  Strips(int64_t rows, int64_t columns, int64_t pack) : rows(rows), columns(columns) {
    const int64_t threads = columns % pack == 0 ? columns / pack : columns;
    int64_t most = kMostThreads / (threads > 0 ? threads : 1);
    if (most > rows / kLeastRows) most = rows / kLeastRows;
    if (most < 1) most = 1;
    length = rows > 0 ? (rows + most - 1) / most : 1;
    strips = (rows + length - 1) / length;
    groups = (strips + kStripsInGroup - 1) / kStripsInGroup;
  }
  // The rows of `count` neighbouring strips from `strip` on.
  __device__ int64_t RowsFrom(int64_t strip, int64_t count) const {
    const int64_t begin = strip * length;
    const int64_t end = begin + count * length;
    return (end < rows ? end : rows) - begin;
  }
};

// Two sums in a fixed order.
struct Sums {
  double first = 0, second = 0;
  __device__ void Take(int64_t, double other_first, double other_second) {
    first += other_first;
    second += other_second;
  }
};

// The mean and the sum of the squares of the differences from it, combined as in Chan, Golub and
// LeVeque 1983.
struct Moments {
  double first = 0, second = 0;
  double count = 0;
  __device__ void Take(int64_t other_count, double mean, double squares) {
    const double all = count + static_cast<double>(other_count);
    const double share = static_cast<double>(other_count) / all;
    const double difference = mean - first;
    first += difference * share;
    second += squares + difference * difference * count * share;
    count = all;
  }
};

// Adds the results of `count` parts of `strips_each` strips each.
template <typename Total>
__device__ Total Combine(const Strips& s, const double* parts, int64_t first, int64_t count,
                         int64_t strips_each, int64_t column) {
  Total total;
#pragma unroll 8
  for (int64_t part = first; part < first + count; ++part) {
    const double* at = parts + part * 2 * s.columns + column;
    total.Take(s.RowsFrom(part * strips_each, strips_each), at[0], at[s.columns]);
  }
  return total;
}

// Calls strip(first row, end, column of the pack, results) for each strip and pack of columns.
template <int n, typename Strip>
struct VisitStrip {
  Strips s;
  Strip strip;
  double* parts;
  __device__ void operator()(int64_t number, int pack) const {
    const int64_t begin = number * s.length;
    const int64_t end = begin + s.length < s.rows ? begin + s.length : s.rows;
    const int column = pack * n;
    double results[2][n];
    strip(begin, end, column, results);
    double* to = parts + number * 2 * s.columns + column;
    for (int i = 0; i < n; ++i) {
      to[i] = results[0][i];
      to[s.columns + i] = results[1][i];
    }
  }
};

template <typename Total>
struct VisitGroup {
  Strips s;
  const double* parts;
  double* groups;
  __device__ void operator()(int64_t group, int column) const {
    const int64_t first = group * kStripsInGroup;
    const int64_t rest = s.strips - first;
    const int64_t count = rest < kStripsInGroup ? rest : kStripsInGroup;
    const Total total = Combine<Total>(s, parts, first, count, 1, column);
    double* to = groups + group * 2 * s.columns + column;
    to[0] = total.first;
    to[s.columns] = total.second;
  }
};

template <typename Total, typename Finish>
struct VisitColumn {
  Strips s;
  const double* parts;
  int64_t count, strips_each;
  Finish finish;
  __device__ void operator()(int64_t column) const {
    finish(column, Combine<Total>(s, parts, 0, count, strips_each, column));
  }
};

// Calls finish(column, total) for each column.
template <typename Total, int n, typename Strip, typename Finish>
cudaError_t SumColumns(cudaStream_t stream, const Strips& s, const Strip& strip, double* scratch,
                       const Finish& finish) {
  cudaError_t error =
      ForEachPlace(stream, s.strips, s.columns / n, VisitStrip<n, Strip>{s, strip, scratch});
  if (error != cudaSuccess) return error;
  if (s.groups <= 1) {
    return ForEach(stream, s.columns, VisitColumn<Total, Finish>{s, scratch, s.strips, 1, finish});
  }
  double* groups = scratch + s.strips * 2 * s.columns;
  error = ForEachPlace(stream, s.groups, s.columns, VisitGroup<Total>{s, scratch, groups});
  if (error != cudaSuccess) return error;
  return ForEach(stream, s.columns,
                 VisitColumn<Total, Finish>{s, groups, s.groups, kStripsInGroup, finish});
}

// The moments of a strip. The differences from the first row are summed, so that no digits are
// lost if the mean is much larger than the deviation.
template <typename S, int n>
struct StripMoments {
  using T = Computed<S>;
  const S* input;
  int64_t columns;
  __device__ void operator()(int64_t begin, int64_t end, int column,
                             double (&results)[2][n]) const {
    const S* at = input + begin * columns + column;
    const Pack<S, n> pivot = LoadPack<n>(at);
    double sums[n] = {}, squares[n] = {};
    for (int64_t row = begin; row < end;) {
      const int64_t stop = row + kRowsInT < end ? row + kRowsInT : end;
      T sum[n] = {}, square[n] = {};
#pragma unroll 4
      for (; row < stop; ++row, at += columns) {
        const Pack<S, n> value = LoadPack<n>(at);
        for (int i = 0; i < n; ++i) {
          const T difference = value.at[i] - pivot.at[i];
          sum[i] += difference;
          square[i] += difference * difference;
        }
      }
      for (int i = 0; i < n; ++i) {
        sums[i] += sum[i];
        squares[i] += square[i];
      }
    }
    const double count = static_cast<double>(end - begin);
    for (int i = 0; i < n; ++i) {
      const double rest = squares[i] - sums[i] * sums[i] / count;
      results[0][i] = pivot.at[i] + sums[i] / count;
      results[1][i] = rest < 0 ? 0 : rest;  // rounding must not make it negative
    }
  }
};

// Replaces the gradient by that before the activation, and sums it and, if `input` is not null,
// its products with input - mean. The sums are of the numbers that are stored.
template <typename S, int n>
struct StripGradients {
  using T = Computed<S>;
  Activation activation;
  const S* outputs;
  const S* input;
  const T* mean;
  S* gradient;
  int64_t columns;

  // Adds `k` rows. All loads come before the stores, so that they are in flight together.
  template <int k>
  __device__ void AddRows(int64_t first, const T (&centre)[n], T (&sum)[n], T (&product)[n]) const {
    Pack<S, n> slopes[k], results[k] = {}, values[k] = {};
    for (int j = 0; j < k; ++j) {
      const int64_t at = first + j * columns;
      slopes[j] = LoadPack<n>(gradient + at);
      if (activation != Activation::kIdentity) results[j] = LoadPack<n>(outputs + at);
      if (input != nullptr) values[j] = LoadPack<n>(input + at);
    }
    for (int j = 0; j < k; ++j) {
      for (int i = 0; i < n; ++i) {
        if (activation != Activation::kIdentity) {
          slopes[j].at[i] =
              static_cast<S>(ActivatedBackward<T>(activation, results[j].at[i], slopes[j].at[i]));
        }
        const T slope = slopes[j].at[i];
        sum[i] += slope;
        if (input != nullptr) product[i] += slope * (values[j].at[i] - centre[i]);
      }
      if (activation != Activation::kIdentity) {
        StorePack<n>(slopes[j], gradient + first + j * columns);
      }
    }
  }

  __device__ void operator()(int64_t begin, int64_t end, int column,
                             double (&results)[2][n]) const {
    T centre[n] = {};
    for (int i = 0; i < n; ++i) {
      results[0][i] = results[1][i] = 0;
      if (input != nullptr) centre[i] = mean[column + i];
    }
    for (int64_t row = begin; row < end;) {
      const int64_t stop = row + kRowsInT < end ? row + kRowsInT : end;
      T sum[n] = {}, product[n] = {};
      for (; row + 4 <= stop; row += 4) AddRows<4>(row * columns + column, centre, sum, product);
      for (; row < stop; ++row) AddRows<1>(row * columns + column, centre, sum, product);
      for (int i = 0; i < n; ++i) {
        results[0][i] += sum[i];
        results[1][i] += product[i];
      }
    }
  }
};

template <typename T>
struct SetSum {
  T* sums;
  __device__ void operator()(int64_t column, const Sums& total) const {
    sums[column] = static_cast<T>(total.first);
  }
};

template <typename T>
struct SetStatistics {
  int64_t rows;
  BatchStatistics<T> statistics;
  __device__ void operator()(int64_t c, const Moments& moments) const {
    const T mean = static_cast<T>(moments.first);
    const T variance = static_cast<T>(moments.second / static_cast<double>(rows));
    statistics.mean[c] = mean;
    statistics.variance[c] = variance;
    if (statistics.running_mean == nullptr) return;
    // One number has no unbiased variance; the biased one, 0, is used.
    const T unbiased = rows > 1 ? static_cast<T>(rows) / static_cast<T>(rows - 1) : T{1};
    const T momentum = static_cast<T>(statistics.momentum);
    statistics.running_mean[c] += momentum * (mean - statistics.running_mean[c]);
    statistics.running_variance[c] +=
        momentum * (unbiased * variance - statistics.running_variance[c]);
  }
};

// The gradients by scale and shift, and the factors of the gradient by the input. Ioffe and
// Szegedy 2015; the formula is at CpuDevice::NormaliseBackward.
template <typename T>
struct SetGradients {
  Normalisation<T> layer;
  bool of_batch;
  T* scale_gradient;
  T* shift_gradient;
  T* factors;
  __device__ void operator()(int64_t c, const Sums& total) const {
    const double count = static_cast<double>(layer.rows);
    const double inverse = 1 / std::sqrt(layer.variance[c] + layer.epsilon);
    const double factor = layer.scale[c] * inverse;
    const double slope = of_batch ? -factor * inverse * inverse * total.second / count : 0.0;
    scale_gradient[c] = static_cast<T>(total.second * inverse);
    shift_gradient[c] = static_cast<T>(total.first);
    factors[c] = static_cast<T>(factor);
    factors[layer.channels + c] = static_cast<T>(slope);
    factors[2 * layer.channels + c] =
        of_batch ? static_cast<T>(-factor * total.first / count - slope * layer.mean[c]) : T{0};
  }
};

template <typename S, int n>
struct AddBiasToColumn {
  using T = Computed<S>;
  const T* bias;
  Activation activation;
  S* values;
  int64_t columns;
  struct Visit {
    T bias[n];
    Activation activation;
    S* values;
    int64_t columns;
    __device__ void operator()(int64_t row) const {
      Pack<S, n> value = LoadPack<n>(values + row * columns);
      for (int i = 0; i < n; ++i) {
        value.at[i] = static_cast<S>(Activated<T>(activation, value.at[i] + bias[i]));
      }
      StorePack<n>(value, values + row * columns);
    }
  };
  __device__ Visit operator()(int pack) const {
    Visit visit = {{}, activation, values + pack * n, columns};
    for (int i = 0; i < n; ++i) visit.bias[i] = bias == nullptr ? T{0} : bias[pack * n + i];
    return visit;
  }
};

template <typename S, int n>
struct NormaliseColumn {
  using T = Computed<S>;
  Normalisation<T> layer;
  const S* residual;
  const S* input;
  S* output;
  struct Visit {
    T factor[n], addend[n];
    Activation activation;
    const S* input;
    const S* residual;
    S* output;
    int64_t columns;
    __device__ void operator()(int64_t row) const {
      Pack<S, n> value = LoadPack<n>(input + row * columns);
      Pack<S, n> other = {};
      if (residual != nullptr) other = LoadPack<n>(residual + row * columns);
      for (int i = 0; i < n; ++i) {
        T number = value.at[i] * factor[i] + addend[i];
        if (residual != nullptr) number += other.at[i];
        value.at[i] = static_cast<S>(Activated(activation, number));
      }
      StorePack<n>(value, output + row * columns);
    }
  };
  __device__ Visit operator()(int pack) const {
    const int column = pack * n;
    Visit visit = {{},
                   {},
                   layer.activation,
                   input + column,
                   residual == nullptr ? nullptr : residual + column,
                   output + column,
                   layer.channels};
    for (int i = 0; i < n; ++i) {
      const int c = column + i;
      const T deviation = std::sqrt(layer.variance[c] + static_cast<T>(layer.epsilon));
      visit.factor[i] = layer.scale[c] / deviation;
      visit.addend[i] = layer.shift[c] - layer.mean[c] * visit.factor[i];
    }
    return visit;
  }
};

template <typename S, int n>
struct CombineColumn {
  using T = Computed<S>;
  int64_t columns;
  const T* factors;
  const S* gradient;
  const S* input;
  S* result;
  struct Visit {
    T by_gradient[n], by_input[n], addend[n];
    const S* gradient;
    const S* input;
    S* result;
    int64_t columns;
    __device__ void operator()(int64_t row) const {
      Pack<S, n> value = LoadPack<n>(gradient + row * columns);
      const Pack<S, n> other = LoadPack<n>(input + row * columns);
      for (int i = 0; i < n; ++i) {
        const T sum = value.at[i] * by_gradient[i] + other.at[i] * by_input[i] + addend[i];
        value.at[i] = static_cast<S>(sum);
      }
      StorePack<n>(value, result + row * columns);
    }
  };
  __device__ Visit operator()(int pack) const {
    const int column = pack * n;
    Visit visit = {{}, {}, {}, gradient + column, input + column, result + column, columns};
    for (int i = 0; i < n; ++i) {
      visit.by_gradient[i] = factors[column + i];
      visit.by_input[i] = factors[columns + column + i];
      visit.addend[i] = factors[2 * columns + column + i];
    }
    return visit;
  }
};

}  // namespace

template <typename S>
int64_t ColumnScratch(int64_t rows, int64_t columns) {
  const Strips s(rows, columns, kPackSize<S>);
  return (s.strips + s.groups) * 2 * columns;
}

template <typename S>
cudaError_t AddBias(cudaStream_t stream, int64_t rows, int64_t columns, const Computed<S>* bias,
                    Activation activation, S* values) {
  if (bias == nullptr && activation == Activation::kIdentity) return cudaSuccess;
  return WithPacks<S>(
      columns,
      [&]<int n>(PackSize<n>) {
        return ForEachColumn(stream, rows, columns / n,
                             AddBiasToColumn<S, n>{bias, activation, values, columns});
      },
      values);
}

template <typename S>
cudaError_t AddBiasBackward(cudaStream_t stream, int64_t rows, int64_t columns,
                            Activation activation, const S* outputs, S* gradient, double* scratch,
                            Computed<S>* sums) {
  return WithPacks<S>(
      columns,
      [&]<int n>(PackSize<n>) {
        const Strips s(rows, columns, kPackSize<S>);
        const StripGradients<S, n> strip = {activation, outputs,  nullptr,
                                            nullptr,    gradient, columns};
        return SumColumns<Sums, n>(stream, s, strip, scratch, SetSum<Computed<S>>{sums});
      },
      outputs, gradient);
}

template <typename S>
cudaError_t FindStatistics(cudaStream_t stream, int64_t rows, int64_t channels, const S* input,
                           double* scratch, const BatchStatistics<Computed<S>>& statistics) {
  return WithPacks<S>(
      channels,
      [&]<int n>(PackSize<n>) {
        const Strips s(rows, channels, kPackSize<S>);
        return SumColumns<Moments, n>(stream, s, StripMoments<S, n>{input, channels}, scratch,
                                      SetStatistics<Computed<S>>{rows, statistics});
      },
      input);
}

template <typename S>
cudaError_t Normalise(cudaStream_t stream, const Normalisation<Computed<S>>& layer, const S* input,
                      S* output) {
  const S* const residual = As<S>(layer.residual);
  return WithPacks<S>(
      layer.channels,
      [&]<int n>(PackSize<n>) {
        return ForEachColumn(stream, layer.rows, layer.channels / n,
                             NormaliseColumn<S, n>{layer, residual, input, output});
      },
      input, residual, output);
}

template <typename S>
cudaError_t NormaliseBackward(cudaStream_t stream, const Normalisation<Computed<S>>& layer,
                              bool of_batch, const S* input, const S* output, S* output_gradient,
                              const LayerGradients<Computed<S>>& gradients, double* scratch,
                              Computed<S>* factors) {
  const cudaError_t error = WithPacks<S>(
      layer.channels,
      [&]<int n>(PackSize<n>) {
        const Strips s(layer.rows, layer.channels, kPackSize<S>);
        const StripGradients<S, n> strip = {layer.activation, output,          input,
                                            layer.mean,       output_gradient, layer.channels};
        return SumColumns<Sums, n>(
            stream, s, strip, scratch,
            SetGradients<Computed<S>>{layer, of_batch, gradients.weights, gradients.bias, factors});
      },
      input, output, output_gradient);
  if (error != cudaSuccess || gradients.input == nullptr) return error;
  S* const result = As<S>(gradients.input);
  return WithPacks<S>(
      layer.channels,
      [&]<int n>(PackSize<n>) {
        return ForEachColumn(
            stream, layer.rows, layer.channels / n,
            CombineColumn<S, n>{layer.channels, factors, output_gradient, input, result});
      },
      input, output_gradient, result);
}

#define SYNCGRADS_FOR_STORAGE(S)                                                                 \
  template int64_t ColumnScratch<S>(int64_t, int64_t);                                           \
  template cudaError_t AddBias(cudaStream_t, int64_t, int64_t, const Computed<S>*, Activation,   \
                               S*);                                                              \
  template cudaError_t AddBiasBackward(cudaStream_t, int64_t, int64_t, Activation, const S*, S*, \
                                       double*, Computed<S>*);                                   \
  template cudaError_t FindStatistics(cudaStream_t, int64_t, int64_t, const S*, double*,         \
                                      const BatchStatistics<Computed<S>>&);                      \
  template cudaError_t Normalise(cudaStream_t, const Normalisation<Computed<S>>&, const S*, S*); \
  template cudaError_t NormaliseBackward(                                                        \
      cudaStream_t, const Normalisation<Computed<S>>&, bool, const S*, const S*, S*,             \
      const LayerGradients<Computed<S>>&, double*, Computed<S>*);
SYNCGRADS_FOR_STORAGE(float)
SYNCGRADS_FOR_STORAGE(double)
SYNCGRADS_FOR_STORAGE(Bf16)
#undef SYNCGRADS_FOR_STORAGE

}  // namespace syncgrads::cuda
