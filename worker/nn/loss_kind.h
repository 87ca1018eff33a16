// The losses of one row.
//
// This file is compiled for the host and for CUDA.

#ifndef SYNCGRADS_WORKER_NN_LOSS_KIND_H_
#define SYNCGRADS_WORKER_NN_LOSS_KIND_H_

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define SYNCGRADS_HOST_DEVICE __host__ __device__
#else
#define SYNCGRADS_HOST_DEVICE
#endif

namespace syncgrads {

enum class LossKind {
  kLogitCrossEntropy,    // -log softmax(outputs)[target]
  kSquaredError,         // (output - target)^2
  kSigmoidCrossEntropy,  // p = sigmoid(output): -log(p) for target 1, -log(1 - p) for 0
};

// The loss of a row.
struct RowLossRule {
  LossKind kind = LossKind::kLogitCrossEntropy;
  // kLogitCrossEntropy only: the target is 1 - label_smoothing of its class and label_smoothing of
  // all classes in equal parts (Szegedy et al. 2016). From 0 to below 1.
  double label_smoothing = 0;
};

// Returns log(sum of exp(row[i])), without overflow.
template <typename T>
SYNCGRADS_HOST_DEVICE inline double LogSumExp(int64_t columns, const T* row) {
  double largest = row[0];
  for (int64_t i = 1; i < columns; ++i) {
    if (row[i] > largest) largest = row[i];
  }
  double sum = 0;
  for (int64_t i = 0; i < columns; ++i) sum += std::exp(row[i] - largest);
  return largest + std::log(sum);
}

// Returns the mean of the logits, weighted by the smoothed target.
template <typename T>
SYNCGRADS_HOST_DEVICE inline double SmoothedLogit(const RowLossRule& rule, int64_t columns,
                                                  const T* row, double target) {
  const double chosen = row[static_cast<int64_t>(target)];
  if (rule.label_smoothing == 0) return chosen;
  double sum = 0;
  for (int64_t i = 0; i < columns; ++i) sum += row[i];
  return (1 - rule.label_smoothing) * chosen +
         rule.label_smoothing * sum / static_cast<double>(columns);
}

// Returns the loss of a row of outputs. `target` is a number, or a class from 0 to below
// `columns`.
template <typename T>
SYNCGRADS_HOST_DEVICE inline double RowLoss(const RowLossRule& rule, int64_t columns, const T* row,
                                            double target) {
  const double first = row[0];
  switch (rule.kind) {
    case LossKind::kLogitCrossEntropy:
      return LogSumExp(columns, row) - SmoothedLogit(rule, columns, row, target);
    case LossKind::kSquaredError:
      return (first - target) * (first - target);
    case LossKind::kSigmoidCrossEntropy:
      // -t log s(x) - (1 - t) log(1 - s(x)) with s = sigmoid, without overflow.
      return (first > 0 ? first : 0) - first * target + std::log1p(std::exp(-std::fabs(first)));
  }
  return 0;
}

// Sets `gradient` to the derivatives of RowLoss / `divisor` by the outputs.
template <typename T>
SYNCGRADS_HOST_DEVICE inline void RowLossGradient(const RowLossRule& rule, int64_t columns,
                                                  const T* row, double target, double divisor,
                                                  T* gradient) {
  if (rule.kind == LossKind::kLogitCrossEntropy) {
    const double log_sum = LogSumExp(columns, row);
    const double everywhere = rule.label_smoothing / static_cast<double>(columns);
    for (int64_t i = 0; i < columns; ++i) {
      const double probability = std::exp(row[i] - log_sum);
      const double here = i == static_cast<int64_t>(target) ? 1 - rule.label_smoothing : 0;
      gradient[i] = static_cast<T>((probability - (here + everywhere)) / divisor);
    }
  } else if (rule.kind == LossKind::kSquaredError) {
    gradient[0] = static_cast<T>(2 * (row[0] - target) / divisor);
  } else {
    const double x = row[0];
    const double power = std::exp(-std::fabs(x));
    const double sigmoid = (x >= 0 ? 1 : power) / (1 + power);
    gradient[0] = static_cast<T>((sigmoid - target) / divisor);
  }
}

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_LOSS_KIND_H_
