// Loss functions.

#ifndef SYNCGRADS_WORKER_NN_LOSS_H_
#define SYNCGRADS_WORKER_NN_LOSS_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/nn/custom_losses.h"
#include "worker/nn/loss_kind.h"
#include "worker/nn/matrix.h"

namespace syncgrads {

// The loss of a batch: the sum over its rows, divided as `reduction` selects, plus l2 / 2
// times the sum of squares of the penalised parameters.
struct Loss {
  using Kind = LossKind;
  enum class Reduction {
    kMean,        // by the number of rows
    kSum,         // not divided
    kPerElement,  // by the count of numbers in the batch's input
    kByColumn,    // by the sum of the rows' weights
  };
  Kind kind = Kind::kLogitCrossEntropy;
  // If not null, replaces `kind`: a loss of whole batches.
  std::shared_ptr<const CustomLoss> custom;
  // Custom losses only: targets are classes, and the model has an output for each class.
  bool custom_has_classes = false;
  Reduction reduction = Reduction::kMean;
  double l2 = 0;
  // See RowLossRule.
  double label_smoothing = 0;

  RowLossRule rule() const { return {kind, label_smoothing}; }

  // Whether targets are classes and the model has an output for each class.
  bool has_output_for_each_class() const {
    return custom != nullptr ? custom_has_classes : kind == Kind::kLogitCrossEntropy;
  }
  // Whether targets are classes.
  bool has_classes() const {
    return custom != nullptr ? custom_has_classes : kind != Kind::kSquaredError;
  }

  // Returns what the sum over a batch is divided by. `features` is the count of numbers in a
  // row, `weights` the sum of the rows' weights.
  double Divisor(int64_t rows, int64_t features, double weights) const;
};

// Returns how many numbers of a batch's outputs, `outputs` in all, each of its targets belongs to:
// all outputs of a row or, if each output has a target, one. The losses are those of rows of this
// length.
int64_t ColumnsOfATarget(int64_t outputs, size_t targets);

// Returns the sum of the rows' losses, before the division. `targets` has one target for each row
// of `outputs`: a number, or a class from 0 to below the number of outputs. With kSquaredError it
// has one for each output, row after row; with a custom loss any number for each row. Computed in
// double.
template <typename T>
double SumOfLosses(const Loss& loss, const Matrix<T>& outputs, absl::Span<const double> targets);

// Sets `gradient` to the derivatives of SumOfLosses / `divisor` by the outputs. `loss` must not
// be a custom loss.
template <typename T>
void LossGradient(const Loss& loss, const Matrix<T>& outputs, absl::Span<const double> targets,
                  double divisor, Matrix<T>& gradient);

// Computes a custom loss. Returns the loss of the batch divided by `divisor`, and sets
// `gradient` to its derivatives by the outputs. InvalidArgument if the custom loss resizes its
// gradient.
template <typename T>
absl::StatusOr<double> ComputeCustomLoss(const Loss& loss, const Matrix<T>& outputs,
                                         absl::Span<const double> targets, double divisor,
                                         Matrix<T>& gradient);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_LOSS_H_
