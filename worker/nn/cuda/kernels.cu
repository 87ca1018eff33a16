#include <cmath>

#include "worker/base/split_mix.h"
#include "worker/nn/cuda/activation_functions.h"
#include "worker/nn/cuda/kernels.h"
#include "worker/nn/cuda/launch.h"
#include "worker/nn/pixels.h"

namespace syncgrads::cuda {
namespace {

// The cross-entropy of a row of logits is computed in three steps: by kLossParts threads that each
// read every kLossParts-th number, by one thread for a row, and by one thread for a number.
constexpr int kLossParts = 32;

// Log-sum-exp of a part of a row, without overflow, and the plain sum of the part.
struct LossPart {
  double largest, sum_of_powers, sum;
};

template <typename S>
struct SumLossPart {
  int64_t columns;
  const S* outputs;
  LossPart* parts;
  __device__ void operator()(int64_t row, int number) const {
    const S* output = outputs + row * columns;
    LossPart part = {-INFINITY, 0, 0};
    for (int64_t i = number; i < columns; i += kLossParts) {
      const double value = output[i];
      if (value > part.largest || value != value) part.largest = value;
      part.sum += value;
    }
    for (int64_t i = number; i < columns; i += kLossParts) {
      part.sum_of_powers += std::exp(output[i] - part.largest);
    }
    parts[row * kLossParts + number] = part;
  }
};

template <typename S>
struct CombineLossParts {
  RowLossRule rule;
  int64_t columns;
  const S* outputs;
  const double* targets;
  const LossPart* parts;
  double* log_sums;
  double* losses;
  __device__ void operator()(int64_t row) const {
    const LossPart* own = parts + row * kLossParts;
    const int count = columns < kLossParts ? static_cast<int>(columns) : kLossParts;
    double largest = own[0].largest, sum = 0, power = 0;
    for (int i = 1; i < count; ++i) {
      if (own[i].largest > largest || own[i].largest != own[i].largest) largest = own[i].largest;
    }
    for (int i = 0; i < count; ++i) {
      power += own[i].sum_of_powers * std::exp(own[i].largest - largest);
      sum += own[i].sum;
    }
    const double log_sum = largest + std::log(power);
    const double chosen = outputs[row * columns + static_cast<int64_t>(targets[row])];
    const double smoothed = (1 - rule.label_smoothing) * chosen +
                            rule.label_smoothing * sum / static_cast<double>(columns);
    log_sums[row] = log_sum;
    losses[row] = log_sum - (rule.label_smoothing == 0 ? chosen : smoothed);
  }
};

template <typename S, int n>
struct AddPacks {
  Activation activation;
  const S* a;
  const S* b;
  S* sum;
  __device__ void operator()(int64_t i) const {
    Pack<S, n> value = LoadPack<n>(a + i * n);
    const Pack<S, n> other = LoadPack<n>(b + i * n);
    for (int j = 0; j < n; ++j) {
      const Computed<S> added = value.at[j] + other.at[j];
      value.at[j] = static_cast<S>(Activated(activation, added));
    }
    StorePack<n>(value, sum + i * n);
  }
};

template <typename From, typename To, int n>
struct ConvertPacks {
  const From* from;
  To* to;
  __device__ void operator()(int64_t i) const {
    const Pack<From, n> value = LoadPack<n>(from + i * n);
    Pack<To, n> converted;
    for (int j = 0; j < n; ++j) converted.at[j] = static_cast<To>(value.at[j]);
    StorePack<n>(converted, to + i * n);
  }
};

// `n` pixels, which are loaded at once.
template <typename S, int n>
struct StorePixelPacks {
  int64_t channels;
  const unsigned char* pixels;
  const Computed<S>* numbers;
  S* to;
  __device__ void operator()(int64_t i) const {
    const Pack<unsigned char, n> values = LoadPack<n>(pixels + i * n);
    Pack<S, n> stored;
    int64_t channel = i * n % channels;
    for (int j = 0; j < n; ++j) {
      stored.at[j] = static_cast<S>(numbers[channel * kPixelValues + values.at[j]]);
      if (++channel == channels) channel = 0;
    }
    StorePack<n>(stored, to + i * n);
  }
};

// Sets partial[i] to the sum of every kSumScratch-th number from i on.
template <typename Number>
cudaError_t SumPartly(cudaStream_t stream, int64_t count, double* partial, Number number) {
  return ForEach(stream, kSumScratch, [=] __device__(int64_t first) {
    double total = 0;
    for (int64_t i = first; i < count; i += kSumScratch) total += number(i);
    partial[first] = total;
  });
}

// *total += factor * (the sum of `partial`)
cudaError_t AddPartialSums(cudaStream_t stream, double factor, const double* partial,
                           double* total) {
  return ForEach(stream, 1, [=] __device__(int64_t) {
    double sum = 0;
    for (int64_t i = 0; i < kSumScratch; ++i) sum += partial[i];
    *total += factor * sum;
  });
}

struct ReadNumber {
  const double* from;
  __device__ double operator()(int64_t i) const { return from[i]; }
};

struct TakeNumber {
  double* from;
  __device__ double operator()(int64_t i) const {
    const double number = from[i];
    from[i] = 0;
    return number;
  }
};

}  // namespace

template <typename From, typename To>
cudaError_t Convert(cudaStream_t stream, int64_t count, const From* from, To* to) {
  return WithPacks<Bf16>(
      count,
      [&]<int n>(PackSize<n>) {
        return ForEach(stream, count / n, ConvertPacks<From, To, n>{from, to});
      },
      from, to);
}

template <typename S>
cudaError_t StorePixels(cudaStream_t stream, int64_t count, int64_t channels,
                        const unsigned char* pixels, const Computed<S>* numbers, S* to) {
  return WithPacks<S>(
      count,
      [&]<int n>(PackSize<n>) {
        return ForEach(stream, count / n, StorePixelPacks<S, n>{channels, pixels, numbers, to});
      },
      pixels, to);
}

template <typename S>
cudaError_t Add(cudaStream_t stream, Activation activation, int64_t count, const S* a, const S* b,
                S* sum) {
  return WithPacks<S>(
      count,
      [&]<int n>(PackSize<n>) {
        return ForEach(stream, count / n, AddPacks<S, n>{activation, a, b, sum});
      },
      a, b, sum);
}

template <typename S>
cudaError_t ActivateBackward(cudaStream_t stream, Activation activation, int64_t count,
                             const S* outputs, S* gradient) {
  if (activation == Activation::kIdentity) return cudaSuccess;
  return ForEach(stream, count, [=] __device__(int64_t i) {
    gradient[i] =
        static_cast<S>(ActivatedBackward<Computed<S>>(activation, outputs[i], gradient[i]));
  });
}

template <typename T>
cudaError_t UpdateMovingAverage(cudaStream_t stream, T weight, int64_t count, const T* values,
                                T* average) {
  return ForEach(stream, count,
                 [=] __device__(int64_t i) { average[i] += weight * (values[i] - average[i]); });
}

template <typename S>
cudaError_t Dropout(cudaStream_t stream, uint64_t key, double rate, int64_t count, const S* input,
                    S* output) {
  using T = Computed<S>;
  const T kept = static_cast<T>(1 / (1 - rate));
  return ForEach(stream, count, [=] __device__(int64_t i) {
    const T factor = UniformAt(key, static_cast<uint64_t>(i)) < rate ? T{0} : kept;
    output[i] = static_cast<S>(input[i] * factor);
  });
}

template <typename S>
cudaError_t ScaleToRanges(cudaStream_t stream, const RangeScaling<Computed<S>>& layer, bool shifts,
                          const S* input, S* output) {
  using T = Computed<S>;
  const RangeScaling<T> l = layer;
  return ForEachPlace(stream, l.rows, l.columns, [=] __device__(int64_t row, int column) {
    const T width = l.maximum[column] - l.minimum[column];
    const T scale = width > 0 ? 2 / width : T{0};
    const T offset = scale > 0 ? T{-1} : T{0};
    const int64_t i = row * l.columns + column;
    const T value = input[i];
    output[i] =
        static_cast<S>(shifts ? (value - l.minimum[column]) * scale + offset : value * scale);
  });
}

template <typename S>
cudaError_t Transpose(cudaStream_t stream, int64_t count, int64_t rows, int64_t columns,
                      const S* from, S* to) {
  return ForEachPlace(stream, count, rows * columns, [=] __device__(int64_t block, int i) {
    const int64_t column = i / rows;
    const int64_t row = i - column * rows;
    to[block * rows * columns + i] = from[(block * rows + row) * columns + column];
  });
}

int64_t LossScratch(int64_t rows) {
  const int64_t parts = rows * kLossParts * static_cast<int64_t>(sizeof(LossPart) / sizeof(double));
  return 2 * rows + kSumScratch + parts;
}

template <typename S>
cudaError_t FindLoss(cudaStream_t stream, RowLossRule rule, int64_t rows, int64_t columns,
                     const S* outputs, const double* targets, double divisor, double* scratch,
                     double* total, S* gradient) {
  double* const losses = scratch;
  double* const log_sums = losses + rows;
  double* const partial = log_sums + rows;
  cudaError_t error = cudaSuccess;
  if (rule.kind == LossKind::kLogitCrossEntropy) {
    LossPart* const parts = reinterpret_cast<LossPart*>(partial + kSumScratch);
    error = ForEachPlace(stream, rows, columns < kLossParts ? columns : kLossParts,
                         SumLossPart<S>{columns, outputs, parts});
    if (error != cudaSuccess) return error;
    error = ForEach(stream, rows,
                    CombineLossParts<S>{rule, columns, outputs, targets, parts, log_sums, losses});
    if (error != cudaSuccess) return error;
    error = ForEachPlace(stream, rows, columns, [=] __device__(int64_t row, int column) {
      const int64_t i = row * columns + column;
      const double probability = std::exp(outputs[i] - log_sums[row]);
      const double here =
          column == static_cast<int64_t>(targets[row]) ? 1 - rule.label_smoothing : 0;
      const double everywhere = rule.label_smoothing / static_cast<double>(columns);
      gradient[i] = static_cast<S>((probability - (here + everywhere)) / divisor);
    });
  } else {
    error = ForEach(stream, rows, [=] __device__(int64_t row) {
      const S* output = outputs + row * columns;
      losses[row] = RowLoss(rule, columns, output, targets[row]);
      RowLossGradient(rule, columns, output, targets[row], divisor, gradient + row * columns);
    });
  }
  if (error != cudaSuccess) return error;
  error = SumPartly(stream, rows, partial, ReadNumber{losses});
  if (error != cudaSuccess) return error;
  return AddPartialSums(stream, 1 / divisor, partial, total);
}

template <typename T>
cudaError_t Penalise(cudaStream_t stream, double l2, int64_t count, const T* values, T* gradient,
                     double* terms) {
  const T factor = static_cast<T>(l2);
  const int64_t threads = count < kPenaltyTerms ? count : kPenaltyTerms;
  return ForEach(stream, threads, [=] __device__(int64_t first) {
    double sum = 0;
    for (int64_t i = first; i < count; i += kPenaltyTerms) {
      const T value = values[i];
      gradient[i] += factor * value;
      sum += static_cast<double>(value) * static_cast<double>(value);
    }
    terms[first] += l2 / 2 * sum;
  });
}

cudaError_t TakePenalties(cudaStream_t stream, double* terms, double* scratch, double* total) {
  const cudaError_t error = SumPartly(stream, kPenaltyTerms, scratch, TakeNumber{terms});
  if (error != cudaSuccess) return error;
  return AddPartialSums(stream, 1, scratch, total);
}

#define SYNCGRADS_FOR_TYPE(T)                                                       \
  template cudaError_t UpdateMovingAverage(cudaStream_t, T, int64_t, const T*, T*); \
  template cudaError_t Penalise(cudaStream_t, double, int64_t, const T*, T*, double*);
SYNCGRADS_FOR_TYPE(float)
SYNCGRADS_FOR_TYPE(double)
#undef SYNCGRADS_FOR_TYPE

#define SYNCGRADS_FOR_STORAGE(S)                                                           \
  template cudaError_t StorePixels(cudaStream_t, int64_t, int64_t, const unsigned char*,   \
                                   const Computed<S>*, S*);                                \
  template cudaError_t Add(cudaStream_t, Activation, int64_t, const S*, const S*, S*);     \
  template cudaError_t ActivateBackward(cudaStream_t, Activation, int64_t, const S*, S*);  \
  template cudaError_t Dropout(cudaStream_t, uint64_t, double, int64_t, const S*, S*);     \
  template cudaError_t ScaleToRanges(cudaStream_t, const RangeScaling<Computed<S>>&, bool, \
                                     const S*, S*);                                        \
  template cudaError_t Transpose(cudaStream_t, int64_t, int64_t, int64_t, const S*, S*);   \
  template cudaError_t FindLoss(cudaStream_t, RowLossRule, int64_t, int64_t, const S*,     \
                                const double*, double, double*, double*, S*);
SYNCGRADS_FOR_STORAGE(float)
SYNCGRADS_FOR_STORAGE(double)
SYNCGRADS_FOR_STORAGE(Bf16)
#undef SYNCGRADS_FOR_STORAGE

template cudaError_t Convert(cudaStream_t, int64_t, const float*, Bf16*);
template cudaError_t Convert(cudaStream_t, int64_t, const Bf16*, float*);

}  // namespace syncgrads::cuda
