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
// The length of a strip is a multiple of the rows that are loaded together.
constexpr int kStripRowsTogether = 8;
// The most threads that sum strips. Each has 4 loads or more in flight, so that these threads use
// the whole bandwidth of a device.
constexpr int64_t kMostThreads = 1 << 16;
// The columns that a thread sums. More of them take more registers, and more memory for the sums.
constexpr int kStripPack = 4;
// So many strips are summed in one step, without groups.
constexpr int64_t kMostUngrouped = 64;

// How the rows are split. Two sums of each column of each strip are kept, then two of each group.
struct Strips {
  int64_t rows, columns;
  int64_t length;  // rows of a strip
  int64_t strips;
  int64_t group_length;  // strips of a group
  int64_t groups;        // 0 if there are few strips

  Strips(int64_t rows, int64_t columns) : rows(rows), columns(columns) {
    const int64_t threads = columns % kStripPack == 0 ? columns / kStripPack : columns;
    int64_t most = kMostThreads / (threads > 0 ? threads : 1);
    if (most > rows / kLeastRows) most = rows / kLeastRows;
    if (most < 1) most = 1;
    length = rows > 0 ? (rows + most - 1) / most : 1;
    length = (length + kStripRowsTogether - 1) / kStripRowsTogether * kStripRowsTogether;
    strips = (rows + length - 1) / length;
    // About as many groups as strips in a group: both are added one after the other.
    group_length = 1;
    while (group_length * group_length < strips) group_length *= 2;
    groups = strips > kMostUngrouped ? (strips + group_length - 1) / group_length : 0;
  }
};

// Two sums of a column.
template <int n>
using StripSums = Pack<double, n>[2];

// Adds `count` numbers of each of n columns to `sums`, in order. Two numbers of a column are
// `stride` apart, and two columns are `apart`. Many loads are in flight together.
template <int n>
__device__ void AddParts(const double* parts, int count, int64_t stride, int64_t apart,
                         double (&sums)[n]) {
  constexpr int kTogether = 32 / n;
  for (; count > 0; count -= kTogether) {
    double loaded[kTogether][n] = {};
#pragma unroll
    for (int j = 0; j < kTogether; ++j, parts += stride) {
      if (j >= count) continue;
      for (int i = 0; i < n; ++i) loaded[j][i] = parts[i * apart];
    }
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      for (int i = 0; i < n; ++i) sums[i] += loaded[j][i];
    }
  }
}

// Calls strip(first row, end, column of the pack, results) for each strip and pack of columns. The
// results are zeros before.
template <int n, typename Strip>
struct VisitStrip {
  Strips s;
  Strip strip;
  double* parts;
  __device__ void operator()(int64_t number, int pack) const {
    const int64_t begin = number * s.length;
    const int64_t end = begin + s.length < s.rows ? begin + s.length : s.rows;
    const int column = pack * n;
    StripSums<n> results = {};
    strip(begin, end, column, results);
    double* to = parts + number * 2 * s.columns + column;
    StorePack<n>(results[0], to);
    StorePack<n>(results[1], to + s.columns);
  }
};

// Both sums of a strip are columns here.
struct VisitGroup {
  Strips s;
  const double* parts;
  double* groups;
  __device__ void operator()(int64_t group, int column) const {
    const int64_t first = group * s.group_length;
    const int64_t rest = s.strips - first;
    const int64_t count = rest < s.group_length ? rest : s.group_length;
    const int64_t stride = 2 * s.columns;
    double sum[1] = {};
    AddParts<1>(parts + first * stride + column, static_cast<int>(count), stride, 0, sum);
    groups[group * stride + column] = sum[0];
  }
};

template <typename Finish>
struct VisitColumn {
  int64_t columns;
  const double* parts;
  int count;
  Finish finish;
  __device__ void operator()(int64_t column) const {
    const auto loaded = finish.Load(column);
    double sums[2] = {};
    AddParts<2>(parts + column, count, 2 * columns, columns, sums);
    finish(column, loaded, sums[0], sums[1]);
  }
};

// Calls finish(column, finish.Load(column), first sum, second sum) for each column. What Load reads
// is read while the sums are.
template <int n, typename Strip, typename Finish>
cudaError_t SumColumns(cudaStream_t stream, const Strips& s, const Strip& strip, double* scratch,
                       const Finish& finish) {
  cudaError_t error =
      ForEachPlace<true>(stream, s.strips, s.columns / n, VisitStrip<n, Strip>{s, strip, scratch});
  if (error != cudaSuccess) return error;
  if (s.groups == 0) {
    return ForEach<true>(
        stream, s.columns,
        VisitColumn<Finish>{s.columns, scratch, static_cast<int>(s.strips), finish});
  }
  double* groups = scratch + s.strips * 2 * s.columns;
  error = ForEachPlace<true>(stream, s.groups, 2 * s.columns, VisitGroup{s, scratch, groups});
  if (error != cudaSuccess) return error;
  return ForEach<true>(stream, s.columns,
                       VisitColumn<Finish>{s.columns, groups, static_cast<int>(s.groups), finish});
}

// The sums of the differences from the first row, and of their squares. Within a strip, the
// differences are those from the strip's first row, so that T does not lose digits if the mean, or
// the first row of all, is far from the rows of the strip.
template <typename S, int n>
struct StripMoments {
  using T = Computed<S>;
  const S* input;
  int64_t columns;

  // Adds `k` rows. All loads are in flight together.
  template <int k>
  __device__ void AddRows(const S* at, const Pack<S, n>& pivot, T (&sum)[n], T (&square)[n]) const {
    Pack<S, n> values[k];
#pragma unroll
    for (int j = 0; j < k; ++j) values[j] = LoadPack<n>(at + j * columns);
#pragma unroll
    for (int j = 0; j < k; ++j) {
      for (int i = 0; i < n; ++i) {
        const T difference = values[j].at[i] - pivot.at[i];
        sum[i] += difference;
        square[i] += difference * difference;
      }
    }
  }

  __device__ void operator()(int64_t begin, int64_t end, int column, StripSums<n>& results) const {
    constexpr int k = kStripRowsTogether;
    const S* at = input + begin * columns + column;
    const Pack<S, n> pivot = LoadPack<n>(at);
    double sums[n] = {}, squares[n] = {};
    for (int64_t row = begin; row < end;) {
      const int64_t stop = row + kRowsInT < end ? row + kRowsInT : end;
      T sum[n] = {}, square[n] = {};
      for (; row + k <= stop; row += k, at += k * columns) AddRows<k>(at, pivot, sum, square);
      for (; row < stop; ++row, at += columns) AddRows<1>(at, pivot, sum, square);
      for (int i = 0; i < n; ++i) {
        sums[i] += sum[i];
        squares[i] += square[i];
      }
    }
    const double count = static_cast<double>(end - begin);
    const Pack<S, n> first = LoadPack<n>(input + column);
    for (int i = 0; i < n; ++i) {
      const double shift = static_cast<double>(static_cast<T>(pivot.at[i])) -
                           static_cast<double>(static_cast<T>(first.at[i]));
      results[0].at[i] = sums[i] + count * shift;
      results[1].at[i] = squares[i] + shift * (2 * sums[i] + count * shift);
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
  template <Activation kind, int k>
  __device__ void AddRows(int64_t first, const Pack<T, n>& centre, T (&sum)[n],
                          T (&product)[n]) const {
    Pack<S, n> slopes[k], results[k] = {}, values[k] = {};
#pragma unroll
    for (int j = 0; j < k; ++j) {
      const int64_t at = first + j * columns;
      slopes[j] = LoadPack<n>(gradient + at);
      if constexpr (kind != Activation::kIdentity) results[j] = LoadPack<n>(outputs + at);
      if (input != nullptr) values[j] = LoadPack<n>(input + at);
    }
#pragma unroll
    for (int j = 0; j < k; ++j) {
      for (int i = 0; i < n; ++i) {
        if constexpr (kind != Activation::kIdentity) {
          slopes[j].at[i] =
              static_cast<S>(ActivatedBackward<T>(kind, results[j].at[i], slopes[j].at[i]));
        }
        const T slope = slopes[j].at[i];
        sum[i] += slope;
        if (input != nullptr) product[i] += slope * (values[j].at[i] - centre.at[i]);
      }
      if constexpr (kind != Activation::kIdentity) {
        StorePack<n>(slopes[j], gradient + first + j * columns);
      }
    }
  }

  template <Activation kind>
  __device__ void Sum(int64_t begin, int64_t end, int column, StripSums<n>& results) const {
    constexpr int k = sizeof(T) == sizeof(double) ? 2 : 4;
    Pack<T, n> centre = {};
    if (input != nullptr) centre = LoadPack<n>(mean + column);
    for (int64_t row = begin; row < end;) {
      const int64_t stop = row + kRowsInT < end ? row + kRowsInT : end;
      T sum[n] = {}, product[n] = {};
      for (; row + k <= stop; row += k) {
        AddRows<kind, k>(row * columns + column, centre, sum, product);
      }
      for (; row < stop; ++row) AddRows<kind, 1>(row * columns + column, centre, sum, product);
      for (int i = 0; i < n; ++i) {
        results[0].at[i] += sum[i];
        results[1].at[i] += product[i];
      }
    }
  }

  __device__ void operator()(int64_t begin, int64_t end, int column, StripSums<n>& results) const {
    WithActivation(activation, [&]<Activation kind>(ActivationKind<kind>) {
      Sum<kind>(begin, end, column, results);
    });
  }
};

template <typename T>
struct SetSum {
  T* sums;
  struct Loaded {};
  __device__ Loaded Load(int64_t) const { return {}; }
  __device__ void operator()(int64_t column, const Loaded&, double sum, double) const {
    sums[column] = static_cast<T>(sum);
  }
};

// From the sums of StripMoments. The first row is one of the numbers, so it is at most sqrt(rows)
// deviations from the mean: the subtraction multiplies rounding errors, which are those of double,
// by `rows` at most.
template <typename S>
struct SetStatistics {
  using T = Computed<S>;
  int64_t rows;
  const S* input;
  BatchStatistics<T> statistics;
  struct Loaded {
    T first, running_mean, running_variance;
  };
  __device__ Loaded Load(int64_t c) const {
    if (statistics.running_mean == nullptr) return {input[c], 0, 0};
    return {input[c], statistics.running_mean[c], statistics.running_variance[c]};
  }
  __device__ void operator()(int64_t c, const Loaded& loaded, double sum, double square) const {
    const double count = static_cast<double>(rows);
    const double difference = sum / count;
    const double rest = square - difference * sum;
    const T mean = static_cast<T>(loaded.first + difference);
    // Rounding must not make the variance negative.
    const T variance = static_cast<T>(rest < 0 ? 0 : rest / count);
    statistics.mean[c] = mean;
    statistics.variance[c] = variance;
    if (statistics.running_mean == nullptr) return;
    // One number has no unbiased variance; the biased one, 0, is used.
    const T unbiased = rows > 1 ? static_cast<T>(rows) / static_cast<T>(rows - 1) : T{1};
    const T momentum = static_cast<T>(statistics.momentum);
    statistics.running_mean[c] = loaded.running_mean + momentum * (mean - loaded.running_mean);
    statistics.running_variance[c] =
        loaded.running_variance + momentum * (unbiased * variance - loaded.running_variance);
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
  struct Loaded {
    T mean, variance, scale;
  };
  __device__ Loaded Load(int64_t c) const {
    return {layer.mean[c], layer.variance[c], layer.scale[c]};
  }
  __device__ void operator()(int64_t c, const Loaded& loaded, double sum, double product) const {
    const double count = static_cast<double>(layer.rows);
    const double inverse = 1 / std::sqrt(loaded.variance + layer.epsilon);
    const double factor = loaded.scale * inverse;
    const double slope = of_batch ? -factor * inverse * inverse * product / count : 0.0;
    scale_gradient[c] = static_cast<T>(product * inverse);
    shift_gradient[c] = static_cast<T>(sum);
    factors[c] = static_cast<T>(factor);
    factors[layer.channels + c] = static_cast<T>(slope);
    factors[2 * layer.channels + c] =
        of_batch ? static_cast<T>(-factor * sum / count - slope * loaded.mean) : T{0};
  }
};

template <typename S, int n>
struct AddBiasToColumn {
  using T = Computed<S>;
  const T* bias;
  Activation activation;
  S* values;
  int64_t columns;
  struct Change {
    Pack<T, n> bias;
    Activation activation;
    S* values;
    int64_t columns;
    __device__ Pack<S, n> Load(int64_t row) const { return LoadPack<n>(values + row * columns); }
    __device__ void Store(Pack<S, n> value, int64_t row) const {
      WithActivation(activation, [&]<Activation kind>(ActivationKind<kind>) {
        for (int i = 0; i < n; ++i) {
          value.at[i] = static_cast<S>(Activated<T>(kind, value.at[i] + bias.at[i]));
        }
      });
      StorePack<n>(value, values + row * columns);
    }
  };
  __device__ Change operator()(int pack) const {
    Change change = {{}, activation, values + pack * n, columns};
    if (bias != nullptr) change.bias = LoadPack<n>(bias + pack * n);
    return change;
  }
};

// Adds `terms` terms: the normalised input and, if there are two, a residual.
template <typename S, int n, int terms>
struct NormaliseColumn {
  using T = Computed<S>;
  Normalisation<T> layer;
  const S* residual;
  const S* input;
  S* output;
  struct Loaded {
    Pack<S, n> term[terms];
  };
  struct Change {
    T factor[n], addend[n];
    Activation activation;
    const S* input;
    const S* residual;
    S* output;
    int64_t columns;
    __device__ Loaded Load(int64_t row) const {
      Loaded loaded;
      loaded.term[0] = LoadPack<n>(input + row * columns);
      if constexpr (terms == 2) loaded.term[1] = LoadPack<n>(residual + row * columns);
      return loaded;
    }
    __device__ void Store(const Loaded& loaded, int64_t row) const {
      Pack<S, n> result = {};
      WithActivation(activation, [&]<Activation kind>(ActivationKind<kind>) {
        for (int i = 0; i < n; ++i) {
          T number = loaded.term[0].at[i] * factor[i] + addend[i];
          if constexpr (terms == 2) number += loaded.term[1].at[i];
          result.at[i] = static_cast<S>(Activated(kind, number));
        }
      });
      StorePack<n>(result, output + row * columns);
    }
  };
  __device__ Change operator()(int pack) const {
    const int column = pack * n;
    Change change = {{},
                     {},
                     layer.activation,
                     input + column,
                     terms == 2 ? residual + column : nullptr,
                     output + column,
                     layer.channels};
    const Pack<T, n> mean = LoadPack<n>(layer.mean + column);
    const Pack<T, n> variance = LoadPack<n>(layer.variance + column);
    const Pack<T, n> scale = LoadPack<n>(layer.scale + column);
    const Pack<T, n> shift = LoadPack<n>(layer.shift + column);
    for (int i = 0; i < n; ++i) {
      const T deviation = std::sqrt(variance.at[i] + static_cast<T>(layer.epsilon));
      change.factor[i] = scale.at[i] / deviation;
      change.addend[i] = shift.at[i] - mean.at[i] * change.factor[i];
    }
    return change;
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
  struct Loaded {
    Pack<S, n> value, other;
  };
  struct Change {
    Pack<T, n> by_gradient, by_input, addend;
    const S* gradient;
    const S* input;
    S* result;
    int64_t columns;
    __device__ Loaded Load(int64_t row) const {
      return {LoadPack<n>(gradient + row * columns), LoadPack<n>(input + row * columns)};
    }
    __device__ void Store(const Loaded& loaded, int64_t row) const {
      Pack<S, n> sums;
      for (int i = 0; i < n; ++i) {
        sums.at[i] = static_cast<S>(loaded.value.at[i] * by_gradient.at[i] +
                                    loaded.other.at[i] * by_input.at[i] + addend.at[i]);
      }
      StorePack<n>(sums, result + row * columns);
    }
  };
  __device__ Change operator()(int pack) const {
    const int column = pack * n;
    const T* at = factors + column;
    return {LoadPack<n>(at),
            LoadPack<n>(at + columns),
            LoadPack<n>(at + 2 * columns),
            gradient + column,
            input + column,
            result + column,
            columns};
  }
};

}  // namespace

int64_t ColumnScratch(int64_t rows, int64_t columns) {
  const Strips s(rows, columns);
  return (s.strips + s.groups) * 2 * columns;
}

template <typename S>
cudaError_t AddBias(cudaStream_t stream, int64_t rows, int64_t columns, const Computed<S>* bias,
                    Activation activation, S* values) {
  if (bias == nullptr && activation == Activation::kIdentity) return cudaSuccess;
  return WithPacks<S>(
      columns,
      [&]<int n>(PackSize<n>) {
        return ChangeEachColumn(stream, rows, columns / n,
                                AddBiasToColumn<S, n>{bias, activation, values, columns});
      },
      bias, values);
}

template <typename S>
cudaError_t AddBiasBackward(cudaStream_t stream, int64_t rows, int64_t columns,
                            Activation activation, const S* outputs, S* gradient, double* scratch,
                            Computed<S>* sums) {
  return WithPacks<S, kStripPack>(
      columns,
      [&]<int n>(PackSize<n>) {
        const Strips s(rows, columns);
        const StripGradients<S, n> strip = {activation, outputs,  nullptr,
                                            nullptr,    gradient, columns};
        return SumColumns<n>(stream, s, strip, scratch, SetSum<Computed<S>>{sums});
      },
      outputs, gradient);
}

template <typename S>
cudaError_t FindStatistics(cudaStream_t stream, int64_t rows, int64_t channels, const S* input,
                           double* scratch, const BatchStatistics<Computed<S>>& statistics) {
  return WithPacks<S, kStripPack>(
      channels,
      [&]<int n>(PackSize<n>) {
        const Strips s(rows, channels);
        return SumColumns<n>(stream, s, StripMoments<S, n>{input, channels}, scratch,
                             SetStatistics<S>{rows, input, statistics});
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
        const int64_t packs = layer.channels / n;
        if (residual == nullptr) {
          return ChangeEachColumn(stream, layer.rows, packs,
                                  NormaliseColumn<S, n, 1>{layer, nullptr, input, output});
        }
        return ChangeEachColumn(stream, layer.rows, packs,
                                NormaliseColumn<S, n, 2>{layer, residual, input, output});
      },
      layer.mean, layer.variance, layer.scale, layer.shift, input, residual, output);
}

template <typename S>
cudaError_t NormaliseBackward(cudaStream_t stream, const Normalisation<Computed<S>>& layer,
                              bool of_batch, const S* input, const S* output, S* output_gradient,
                              const LayerGradients<Computed<S>>& gradients, double* scratch,
                              Computed<S>* factors) {
  const cudaError_t error = WithPacks<S, kStripPack>(
      layer.channels,
      [&]<int n>(PackSize<n>) {
        const Strips s(layer.rows, layer.channels);
        const StripGradients<S, n> strip = {layer.activation, output,          input,
                                            layer.mean,       output_gradient, layer.channels};
        return SumColumns<n>(
            stream, s, strip, scratch,
            SetGradients<Computed<S>>{layer, of_batch, gradients.weights, gradients.bias, factors});
      },
      layer.mean, input, output, output_gradient);
  if (error != cudaSuccess || gradients.input == nullptr) return error;
  S* const result = As<S>(gradients.input);
  return WithPacks<S>(
      layer.channels,
      [&]<int n>(PackSize<n>) {
        return ChangeEachColumn(
            stream, layer.rows, layer.channels / n,
            CombineColumn<S, n>{layer.channels, factors, output_gradient, input, result});
      },
      factors, input, output_gradient, result);
}

#define SYNCGRADS_FOR_STORAGE(S)                                                                 \
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
