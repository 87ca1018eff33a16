// What training makes small.

#ifndef SYNCGRADS_WORKER_NN_LOSS_H_
#define SYNCGRADS_WORKER_NN_LOSS_H_

#include <cstdint>

#include "absl/types/span.h"
#include "worker/nn/matrix.h"
#include "worker/nn/parameter.h"

namespace syncgrads {

// A loss of a batch: the sum over its rows, divided as `normalisation` says, plus
// l2 / 2 times the sum of squares of the kernels.
struct Loss {
  enum class Kind {
    kLogitCrossEntropy,    // -log softmax(outputs)[target]
    kSquaredError,         // (output - target)^2
    kSigmoidCrossEntropy,  // -log of sigmoid(output) for target 1, of its rest for 0
  };
  enum class Normalisation {
    kMean,        // by the rows
    kSum,         // by nothing
    kPerElement,  // by the numbers in the batch's input
    kByColumn,    // by the sum of the rows' weights
  };
  Kind kind = Kind::kLogitCrossEntropy;
  Normalisation normalisation = Normalisation::kMean;
  double l2 = 0;

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

// l2 / 2 times the sum of squares, 0 for a parameter that is not penalised.
template <typename T>
double Penalty(const Loss& loss, const Parameter<T>& parameter);

// Adds the derivative of Penalty to the parameter's gradient.
template <typename T>
void AddPenaltyGradient(const Loss& loss, Parameter<T>& parameter);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_NN_LOSS_H_
