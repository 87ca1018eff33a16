// What training makes small.

#ifndef SYNCGRADS_WORKER_NN_LOSS_H_
#define SYNCGRADS_WORKER_NN_LOSS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/nn/custom_losses.h"
#include "worker/nn/device.h"
#include "worker/nn/loss_kind.h"
#include "worker/nn/matrix.h"
#include "worker/nn/parameter.h"

namespace syncgrads {

// A loss of a batch: the sum over its rows, divided as `normalisation` says, plus
// l2 / 2 times the sum of squares of the kernels.
struct Loss {
  using Kind = LossKind;
  enum class Normalisation {
    kMean,        // by the rows
    kSum,         // by nothing
    kPerElement,  // by the numbers in the batch's input
    kByColumn,    // by the sum of the rows' weights
  };
  Kind kind = Kind::kLogitCrossEntropy;
  // In place of `kind`, of batches as a whole.
  std::shared_ptr<const CustomLoss> custom;
  // Of a custom one: whether its targets are classes, an output for each.
  bool custom_has_classes = false;
  Normalisation normalisation = Normalisation::kMean;
  double l2 = 0;

  // Whether targets are classes, with an output for each.
  bool has_output_for_each_class() const {
    return custom != nullptr ? custom_has_classes : kind == Kind::kLogitCrossEntropy;
  }
  // Whether targets are classes.
  bool has_classes() const {
    return custom != nullptr ? custom_has_classes : kind != Kind::kSquaredError;
  }

  // What the sum over a batch is divided by; `weights` is the sum of its rows'.
  double Divisor(int64_t rows, int64_t features, double weights) const;
};

// The sum of the rows' losses, before it is divided. `outputs` and `targets` have
// a row each; a target is a number, or a class from 0 below the number of
// outputs. Computed in double.
template <typename T>
double SumOfLosses(const Loss& loss, const Matrix<T>& outputs, absl::Span<const double> targets);

// Sets `gradient` to the derivatives of SumOfLosses / `divisor` by the outputs.
template <typename T>
void LossGradient(const Loss& loss, const Matrix<T>& outputs, absl::Span<const double> targets,
                  double divisor, Matrix<T>& gradient);

// The loss of a batch by a custom loss, divided by `divisor`, and its derivatives by the
// outputs. InvalidArgument if the loss has made the gradient another size.
template <typename T>
absl::StatusOr<double> ComputeCustomLoss(const Loss& loss, const Matrix<T>& outputs,
                                         absl::Span<const double> targets, double divisor,
                                         Matrix<T>& gradient);

// l2 / 2 times the sum of squares of the host's values, 0 for a parameter that is
// not penalised.
template <typename T>
double Penalty(const Loss& loss, const Parameter<T>& parameter);

// Adds the derivative of Penalty to the gradient that `device` has; queued.
template <typename T>
void AddPenaltyGradient(const Loss& loss, Device<T>& device, Parameter<T>& parameter);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_LOSS_H_
