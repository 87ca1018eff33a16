// What optimizers are called, what their hyperparameters may be, and which slots
// they keep. Their arithmetic is in update.h.

#ifndef SYNCGRADS_COMMON_OPTIM_OPTIMIZER_H_
#define SYNCGRADS_COMMON_OPTIM_OPTIMIZER_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/update_rule.h"

namespace syncgrads {

// "sgd", "momentum", "nesterov", "rmsprop", "adagrad", "adam", "adamw", "lion",
// "lamb" or "lars".
absl::string_view NameOf(const Optimizer& rule);

// The name and every hyperparameter: "sgd(learning_rate=0.01, weight_decay=0)".
std::string ToString(const Optimizer& rule);

// The rule with its learning rate times `factor`, which is finite and not negative; 0
// where that is too small for a float32.
Optimizer WithRateFactor(const Optimizer& rule, double factor);

// Errors:
//   InvalidArgument  a hyperparameter is not finite or out of its range; names
//                    it, its value and the range. momentum, decay, beta1 and
//                    beta2 are from 0 to below 1; epsilon is a positive normal
//                    float32; learning_rate, weight_decay and trust are that or 0
absl::Status Validate(const Optimizer& rule);

// The slots that `rule` keeps: arrays as long as the parameter and of its dtype,
// which start as zeros. Their names, in the order in which ApplyUpdate takes
// them, are those in update.h.
absl::Span<const absl::string_view> SlotNames(const Optimizer& rule);
int SlotCount(const Optimizer& rule);

// Whether an update of any part of a tensor needs norms of all of it, which are in
// update.h.
bool NeedsNorms(const Optimizer& rule);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_OPTIM_OPTIMIZER_H_
