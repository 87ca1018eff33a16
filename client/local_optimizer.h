// One of this project's optimizers, with its slots, running on a worker.

#ifndef SYNCGRADS_CLIENT_LOCAL_OPTIMIZER_H_
#define SYNCGRADS_CLIENT_LOCAL_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/group/layout.h"
#include "common/ids.h"
#include "common/update_rule.h"

namespace syncgrads {

// Applies `rule` (common/optim has the formulas) to the tensors of a layout. Each tensor has its
// own slots, initially zeros, and its own count of updates; a step in which it has no gradient does
// not count.
//
// Not thread-safe.
class LocalOptimizer {
 public:
  // Errors:
  //   InvalidArgument  a hyperparameter is out of range, or a tensor is neither
  //                    f32 nor f64
  static absl::StatusOr<LocalOptimizer> Create(const Optimizer& rule,
                                               absl::Span<const TensorSpec> tensors);

  // Multiplies the rule's learning rate by `factor` from now on. `factor` is finite and not
  // negative.
  void SetRateFactor(double factor);

  // Updates the tensor's `parameters` with its `gradient`. InvalidArgument if the tensor is
  // unknown, or if one of the two is not as long as the tensor.
  absl::Status Apply(TensorId tensor, absl::Span<const std::byte> gradient,
                     absl::Span<std::byte> parameters);

  // Slot `slot` (0 to slots() - 1) of a tensor, to be saved, broadcast, or restored.
  absl::Span<std::byte> slot(TensorId tensor, int slot);
  // The number of slots of the rule.
  int slots() const;
  uint64_t updates(TensorId tensor) const { return states_[ToNumber(tensor)].updates; }
  void set_updates(TensorId tensor, uint64_t updates) {
    states_[ToNumber(tensor)].updates = updates;
  }

 private:
  struct State {
    std::vector<std::vector<std::byte>> slots;
    uint64_t updates = 0;
  };

  LocalOptimizer(const Optimizer& rule, absl::Span<const TensorSpec> tensors);

  Optimizer rule_;
  Optimizer current_;  // `rule_` with the current learning rate
  std::vector<TensorSpec> tensors_;
  std::vector<State> states_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_CLIENT_LOCAL_OPTIMIZER_H_
