// The update rules, as plain data: a reduction, a gather, or an optimizer closes a round. The
// arithmetic is in common/kernels (reductions) and common/optim (optimizers).

#ifndef SYNCGRADS_COMMON_UPDATE_RULE_H_
#define SYNCGRADS_COMMON_UPDATE_RULE_H_

#include <variant>

namespace syncgrads {

enum class Reduction { kAverage = 1, kSum = 2, kMin = 3, kMax = 4, kProduct = 5 };

// The result is the payloads of all contributors, one after the other in rank order.
struct Gather {
  friend bool operator==(const Gather&, const Gather&) = default;
};

// Optimizers. In the comments below, g is the averaged gradient and x is the parameter. Each
// optimizer's formula is in common/optim/update.h.
struct Sgd {
  double learning_rate = 0.01;
  double weight_decay = 0;  // added first: g += weight_decay * x
  friend bool operator==(const Sgd&, const Sgd&) = default;
};
struct Momentum {
  double learning_rate = 0.01;
  double momentum = 0.9;
  double weight_decay = 0;
  friend bool operator==(const Momentum&, const Momentum&) = default;
};
struct Nesterov {
  double learning_rate = 0.01;
  double momentum = 0.9;
  double weight_decay = 0;
  friend bool operator==(const Nesterov&, const Nesterov&) = default;
};
struct RmsProp {
  double learning_rate = 0.001;
  double decay = 0.9;
  double epsilon = 1e-8;
  friend bool operator==(const RmsProp&, const RmsProp&) = default;
};
struct Adagrad {
  double learning_rate = 0.1;
  double epsilon = 1e-8;
  friend bool operator==(const Adagrad&, const Adagrad&) = default;
};
struct Adam {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  friend bool operator==(const Adam&, const Adam&) = default;
};
struct AdamW {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;  // decoupled: x -= learning_rate * weight_decay * x
  friend bool operator==(const AdamW&, const AdamW&) = default;
};
struct Lion {
  double learning_rate = 0.0001;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;  // decoupled: x -= learning_rate * weight_decay * x
  friend bool operator==(const Lion&, const Lion&) = default;
};
// Lamb and Lars scale the step of each tensor by the tensor's norm, so an update needs norms of
// whole tensors.
struct Lamb {
  double learning_rate = 0.001;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-6;
  double weight_decay = 0.01;
  friend bool operator==(const Lamb&, const Lamb&) = default;
};
struct Lars {
  double learning_rate = 0.1;
  double momentum = 0.9;
  double weight_decay = 0;
  double trust = 0.001;
  friend bool operator==(const Lars&, const Lars&) = default;
};
using Optimizer =
    std::variant<Sgd, Momentum, Nesterov, RmsProp, Adagrad, Adam, AdamW, Lion, Lamb, Lars>;

using UpdateRule = std::variant<Reduction, Gather, Optimizer>;

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_UPDATE_RULE_H_
