// The names of the optimizers, the ranges of their hyperparameters, and their slots. The arithmetic
// is in update.h.

#ifndef SYNCGRADS_COMMON_OPTIM_OPTIMIZER_H_
#define SYNCGRADS_COMMON_OPTIM_OPTIMIZER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/update_rule.h"

namespace syncgrads {

// Returns "sgd", "momentum", "nesterov", "rmsprop", "adagrad", "adam", "adamw", "lion", "lamb" or
// "lars".
absl::string_view NameOf(const Optimizer& rule);

// Returns the name and every hyperparameter, for example "sgd(learning_rate=0.01, weight_decay=0)".
std::string ToString(const Optimizer& rule);

// Returns the rule with its learning rate multiplied by `factor`, which is finite and not negative.
// If the product is below the smallest normal float32, the learning rate is 0.
Optimizer WithRateFactor(const Optimizer& rule, double factor);

// Factors of the hyperparameters of an optimizer for one tensor, for example to spare biases the
// weight decay. Each is 0, or from kMinTensorFactor to kMaxTensorFactor.
struct TensorFactors {
  double learning_rate = 1;
  double weight_decay = 1;
  friend bool operator==(const TensorFactors&, const TensorFactors&) = default;
};
inline constexpr double kMinTensorFactor = 1e-6;
inline constexpr double kMaxTensorFactor = 1e6;

// Returns the rule for a tensor with these factors. Products below the smallest normal float32 are
// 0. A rule without weight decay has none with any factor.
Optimizer WithFactors(const Optimizer& rule, const TensorFactors& factors);

// Returns whether the rule has the hyperparameter weight_decay.
bool HasWeightDecay(const Optimizer& rule);

// Returns for example "learning_rate=0.1, weight_decay=0".
std::string ToString(const TensorFactors& factors);

// Errors (the message has the factor, its value and the range):
//   InvalidArgument  a factor is out of its range
absl::Status Validate(const TensorFactors& factors);

// Checks the hyperparameters.
//
// Errors (the message has the hyperparameter, its value and the range):
//   InvalidArgument  a hyperparameter is not finite or out of its range: momentum, decay,
//                    beta1 and beta2 are from 0 to below 1; epsilon is a positive normal
//                    float32; learning_rate, weight_decay and trust are 0 or a positive
//                    normal float32
absl::Status Validate(const Optimizer& rule);

// Returns the names of the slots that `rule` keeps, in the order in which ApplyUpdate expects them.
// A slot is an array of the parameter's length and dtype that starts as zeros. update.h describes
// the slots.
absl::Span<const absl::string_view> SlotNames(const Optimizer& rule);
int SlotCount(const Optimizer& rule);

// Returns whether an update of any part of a tensor needs norms of the whole tensor (see update.h).
bool NeedsNorms(const Optimizer& rule);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_OPTIM_OPTIMIZER_H_
