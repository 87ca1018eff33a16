#include "worker/nn/loss.h"

#include "absl/strings/str_cat.h"

namespace syncgrads {

double Loss::Divisor(int64_t rows, int64_t features, double weights) const {
  switch (reduction) {
    case Reduction::kMean:
      return static_cast<double>(rows);
    case Reduction::kSum:
      return 1;
    case Reduction::kPerElement:
      return static_cast<double>(rows) * static_cast<double>(features);
    case Reduction::kByColumn:
      return weights;
  }
  return 1;
}

int64_t ColumnsOfATarget(int64_t outputs, size_t targets) {
  return targets == 0 ? outputs : outputs / static_cast<int64_t>(targets);
}

template <typename T>
double SumOfLosses(const Loss& loss, const Matrix<T>& outputs, absl::Span<const double> targets) {
  if (loss.custom != nullptr) {
    return loss.custom->Compute(outputs.template cast<double>(), targets, nullptr);
  }
  double sum = 0;
  const int64_t columns = ColumnsOfATarget(outputs.size(), targets.size());
  for (size_t i = 0; i < targets.size(); ++i) {
    sum += RowLoss(loss.rule(), columns, outputs.data() + static_cast<int64_t>(i) * columns,
                   targets[i]);
  }
  return sum;
}

template <typename T>
void LossGradient(const Loss& loss, const Matrix<T>& outputs, absl::Span<const double> targets,
                  double divisor, Matrix<T>& gradient) {
  gradient.resize(outputs.rows(), outputs.cols());
  const int64_t columns = ColumnsOfATarget(outputs.size(), targets.size());
  for (size_t i = 0; i < targets.size(); ++i) {
    const int64_t first = static_cast<int64_t>(i) * columns;
    RowLossGradient(loss.rule(), columns, outputs.data() + first, targets[i], divisor,
                    gradient.data() + first);
  }
}

template <typename T>
absl::StatusOr<double> ComputeCustomLoss(const Loss& loss, const Matrix<T>& outputs,
                                         absl::Span<const double> targets, double divisor,
                                         Matrix<T>& gradient) {
  Matrix<double> derivatives = Matrix<double>::Zero(outputs.rows(), outputs.cols());
  const double value = loss.custom->Compute(outputs.template cast<double>(), targets, &derivatives);
  if (derivatives.rows() != outputs.rows() || derivatives.cols() != outputs.cols()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the custom loss has returned a gradient of ", derivatives.rows(), "x", derivatives.cols(),
        ", but the outputs are ", outputs.rows(), "x", outputs.cols()));
  }
  gradient = (derivatives / divisor).template cast<T>();
  return value / divisor;
}

template double SumOfLosses(const Loss&, const Matrix<float>&, absl::Span<const double>);
template double SumOfLosses(const Loss&, const Matrix<double>&, absl::Span<const double>);
template void LossGradient(const Loss&, const Matrix<float>&, absl::Span<const double>, double,
                           Matrix<float>&);
template void LossGradient(const Loss&, const Matrix<double>&, absl::Span<const double>, double,
                           Matrix<double>&);
template absl::StatusOr<double> ComputeCustomLoss(const Loss&, const Matrix<float>&,
                                                  absl::Span<const double>, double, Matrix<float>&);
template absl::StatusOr<double> ComputeCustomLoss(const Loss&, const Matrix<double>&,
                                                  absl::Span<const double>, double,
                                                  Matrix<double>&);

}  // namespace syncgrads
