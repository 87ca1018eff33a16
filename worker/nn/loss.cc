#include "worker/nn/loss.h"

#include <cmath>

namespace syncgrads {
namespace {

// log(sum exp(row)), free of overflow.
template <typename T>
double LogSumExp(const Matrix<T>& outputs, Eigen::Index row) {
  double largest = outputs(row, 0);
  for (Eigen::Index i = 1; i < outputs.cols(); ++i) {
    if (outputs(row, i) > largest) largest = outputs(row, i);
  }
  double sum = 0;
  for (Eigen::Index i = 0; i < outputs.cols(); ++i) sum += std::exp(outputs(row, i) - largest);
  return largest + std::log(sum);
}

double Sigmoid(double x) {
  if (x >= 0) return 1 / (1 + std::exp(-x));
  const double power = std::exp(x);
  return power / (1 + power);
}

template <typename T>
double RowLoss(Loss::Kind kind, const Matrix<T>& outputs, Eigen::Index row, double target) {
  const double first = outputs(row, 0);
  switch (kind) {
    case Loss::Kind::kLogitCrossEntropy:
      return LogSumExp(outputs, row) - outputs(row, static_cast<Eigen::Index>(target));
    case Loss::Kind::kSquaredError:
      return (first - target) * (first - target);
    case Loss::Kind::kSigmoidCrossEntropy:
      // -t log s(x) - (1 - t) log(1 - s(x)), free of overflow.
      return (first > 0 ? first : 0) - first * target + std::log1p(std::exp(-std::fabs(first)));
  }
  return 0;
}

}  // namespace

double Loss::Divisor(int64_t rows, int64_t features, double weights) const {
  switch (normalisation) {
    case Normalisation::kMean:
      return static_cast<double>(rows);
    case Normalisation::kSum:
      return 1;
    case Normalisation::kPerElement:
      return static_cast<double>(rows) * static_cast<double>(features);
    case Normalisation::kByColumn:
      return weights;
  }
  return 1;
}

template <typename T>
double SumOfLosses(const Loss& loss, const Matrix<T>& outputs, absl::Span<const double> targets) {
  double sum = 0;
  for (Eigen::Index row = 0; row < outputs.rows(); ++row) {
    sum += RowLoss(loss.kind, outputs, row, targets[row]);
  }
  return sum;
}

template <typename T>
void LossGradient(const Loss& loss, const Matrix<T>& outputs, absl::Span<const double> targets,
                  double divisor, Matrix<T>& gradient) {
  gradient.resize(outputs.rows(), outputs.cols());
  for (Eigen::Index row = 0; row < outputs.rows(); ++row) {
    const double target = targets[row];
    switch (loss.kind) {
      case Loss::Kind::kLogitCrossEntropy: {
        const double log_sum = LogSumExp(outputs, row);
        for (Eigen::Index i = 0; i < outputs.cols(); ++i) {
          const double probability = std::exp(outputs(row, i) - log_sum);
          const double wanted = i == static_cast<Eigen::Index>(target) ? 1 : 0;
          gradient(row, i) = static_cast<T>((probability - wanted) / divisor);
        }
        break;
      }
      case Loss::Kind::kSquaredError:
        gradient(row, 0) = static_cast<T>(2 * (outputs(row, 0) - target) / divisor);
        break;
      case Loss::Kind::kSigmoidCrossEntropy:
        gradient(row, 0) = static_cast<T>((Sigmoid(outputs(row, 0)) - target) / divisor);
        break;
    }
  }
}

template <typename T>
double Penalty(const Loss& loss, const Parameter<T>& parameter) {
  if (loss.l2 == 0 || !parameter.penalised) return 0;
  double sum = 0;
  for (Eigen::Index i = 0; i < parameter.values.size(); ++i) {
    const double value = parameter.values.data()[i];
    sum += value * value;
  }
  return loss.l2 / 2 * sum;
}

template <typename T>
void AddPenaltyGradient(const Loss& loss, Parameter<T>& parameter) {
  if (loss.l2 == 0 || !parameter.penalised) return;
  parameter.gradient += static_cast<T>(loss.l2) * parameter.values;
}

template double SumOfLosses(const Loss&, const Matrix<float>&, absl::Span<const double>);
template double SumOfLosses(const Loss&, const Matrix<double>&, absl::Span<const double>);
template void LossGradient(const Loss&, const Matrix<float>&, absl::Span<const double>, double,
                           Matrix<float>&);
template void LossGradient(const Loss&, const Matrix<double>&, absl::Span<const double>, double,
                           Matrix<double>&);
template double Penalty(const Loss&, const Parameter<float>&);
template double Penalty(const Loss&, const Parameter<double>&);
template void AddPenaltyGradient(const Loss&, Parameter<float>&);
template void AddPenaltyGradient(const Loss&, Parameter<double>&);

}  // namespace syncgrads
