#include <cmath>

#include "worker/base/split_mix.h"
#include "worker/nn/cuda/activation_functions.h"
#include "worker/nn/cuda/kernels.h"
#include "worker/nn/cuda/launch.h"

namespace syncgrads::cuda {
namespace {

// The cross-entropy of a row of logits is computed in three steps: by kLossParts threads that each
// read every kLossParts-th number, by one thread for a row, and by one thread for a number.
constexpr int kLossParts = 32;

// Log-sum-exp of a part of a row, without overflow, and the plain sum of the part.
struct LossPart {
  double largest, sum_of_powers, sum;
};

template <typename T>
struct SumLossPart {
  int64_t columns;
  const T* outputs;
  LossPart* parts;
  __device__ void operator()(int64_t row, int number) const {
    const T* output = outputs + row * columns;
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

template <typename T>
struct CombineLossParts {
  RowLossRule rule;
  int64_t columns;
  const T* outputs;
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

template <typename T, int n>
struct AddPacks {
  Activation activation;
  const T* a;
  const T* b;
  T* sum;
  __device__ void operator()(int64_t i) const {
    Pack<T, n> value = LoadPack<n>(a + i * n);
    const Pack<T, n> other = LoadPack<n>(b + i * n);
    for (int j = 0; j < n; ++j) value.at[j] = Activated(activation, value.at[j] + other.at[j]);
    StorePack<n>(value, sum + i * n);
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

template <typename T>
cudaError_t Add(cudaStream_t stream, Activation activation, int64_t count, const T* a, const T* b,
                T* sum) {
  return WithPacks(
      count,
      [&]<int n>(PackSize<n>) {
        return ForEach(stream, count / n, AddPacks<T, n>{activation, a, b, sum});
      },
      a, b, sum);
}

template <typename T>
cudaError_t ActivateBackward(cudaStream_t stream, Activation activation, int64_t count,
                             const T* outputs, T* gradient) {
  if (activation == Activation::kIdentity) return cudaSuccess;
  return ForEach(stream, count, [=] __device__(int64_t i) {
    gradient[i] = ActivatedBackward(activation, outputs[i], gradient[i]);
  });
}

template <typename T>
cudaError_t UpdateMovingAverage(cudaStream_t stream, T weight, int64_t count, const T* values,
                                T* average) {
  return ForEach(stream, count,
                 [=] __device__(int64_t i) { average[i] += weight * (values[i] - average[i]); });
}

template <typename T>
cudaError_t Dropout(cudaStream_t stream, uint64_t key, double rate, int64_t count, const T* input,
                    T* output) {
  const T kept = static_cast<T>(1 / (1 - rate));
  return ForEach(stream, count, [=] __device__(int64_t i) {
    output[i] = input[i] * (UniformAt(key, static_cast<uint64_t>(i)) < rate ? T{0} : kept);
  });
}

template <typename T>
cudaError_t ScaleToRanges(cudaStream_t stream, const RangeScaling<T>& layer, bool shifts,
                          const T* input, T* output) {
  const RangeScaling<T> l = layer;
  return ForEachPlace(stream, l.rows, l.columns, [=] __device__(int64_t row, int column) {
    const T width = l.maximum[column] - l.minimum[column];
    const T scale = width > 0 ? 2 / width : T{0};
    const T offset = scale > 0 ? T{-1} : T{0};
    const int64_t i = row * l.columns + column;
    output[i] = shifts ? (input[i] - l.minimum[column]) * scale + offset : input[i] * scale;
  });
}

template <typename T>
cudaError_t Transpose(cudaStream_t stream, int64_t count, int64_t rows, int64_t columns,
                      const T* from, T* to) {
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

template <typename T>
cudaError_t FindLoss(cudaStream_t stream, RowLossRule rule, int64_t rows, int64_t columns,
                     const T* outputs, const double* targets, double divisor, double* scratch,
                     double* total, T* gradient) {
  double* const losses = scratch;
  double* const log_sums = losses + rows;
  double* const partial = log_sums + rows;
  cudaError_t error = cudaSuccess;
  if (rule.kind == LossKind::kLogitCrossEntropy) {
    LossPart* const parts = reinterpret_cast<LossPart*>(partial + kSumScratch);
    error = ForEachPlace(stream, rows, columns < kLossParts ? columns : kLossParts,
                         SumLossPart<T>{columns, outputs, parts});
    if (error != cudaSuccess) return error;
    error = ForEach(stream, rows,
                    CombineLossParts<T>{rule, columns, outputs, targets, parts, log_sums, losses});
    if (error != cudaSuccess) return error;
    error = ForEachPlace(stream, rows, columns, [=] __device__(int64_t row, int column) {
      const int64_t i = row * columns + column;
      const double probability = std::exp(outputs[i] - log_sums[row]);
      const double here =
          column == static_cast<int64_t>(targets[row]) ? 1 - rule.label_smoothing : 0;
      const double everywhere = rule.label_smoothing / static_cast<double>(columns);
      gradient[i] = static_cast<T>((probability - (here + everywhere)) / divisor);
    });
  } else {
    error = ForEach(stream, rows, [=] __device__(int64_t row) {
      const T* output = outputs + row * columns;
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

#define SYNCGRADS_FOR_TYPE(T)                                                                   \
  template cudaError_t Add(cudaStream_t, Activation, int64_t, const T*, const T*, T*);          \
  template cudaError_t ActivateBackward(cudaStream_t, Activation, int64_t, const T*, T*);       \
  template cudaError_t UpdateMovingAverage(cudaStream_t, T, int64_t, const T*, T*);             \
  template cudaError_t Dropout(cudaStream_t, uint64_t, double, int64_t, const T*, T*);          \
  template cudaError_t ScaleToRanges(cudaStream_t, const RangeScaling<T>&, bool, const T*, T*); \
  template cudaError_t Transpose(cudaStream_t, int64_t, int64_t, int64_t, const T*, T*);        \
  template cudaError_t FindLoss(cudaStream_t, RowLossRule, int64_t, int64_t, const T*,          \
                                const double*, double, double*, double*, T*);                   \
  template cudaError_t Penalise(cudaStream_t, double, int64_t, const T*, T*, double*);
SYNCGRADS_FOR_TYPE(float)
SYNCGRADS_FOR_TYPE(double)
#undef SYNCGRADS_FOR_TYPE

}  // namespace syncgrads::cuda
