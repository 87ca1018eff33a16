// The job's optimizer on a worker, with a learning rate that may change.

#ifndef SYNCGRADS_WORKER_TRAIN_WORKER_OPTIMIZER_H_
#define SYNCGRADS_WORKER_TRAIN_WORKER_OPTIMIZER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/layout.h"
#include "common/update_rule.h"

namespace syncgrads {

// Keeps the slots of each tensor, which begin as zeros, and how often it has been
// updated: a step in which it had no gradient is none of its.
//
// Not thread-safe.
class WorkerOptimizer {
 public:
  // Of f32 and f64 tensors. InvalidArgument as Validate.
  static absl::StatusOr<WorkerOptimizer> Create(const Optimizer& rule,
                                                absl::Span<const TensorSpec> tensors);

  // From now on the learning rate is the rule's times `factor`, which is finite and
  // not negative.
  void SetRateFactor(double factor);

  // `gradient` and `values` are as long as tensor `index`.
  void Apply(size_t index, const std::byte* gradient, std::byte* values);

  int slots() const;
  absl::Span<std::byte> slot(size_t index, int slot) {
    return absl::MakeSpan(states_[index].slots[static_cast<size_t>(slot)]);
  }
  uint64_t updates(size_t index) const { return states_[index].updates; }
  void set_updates(size_t index, uint64_t updates) { states_[index].updates = updates; }

 private:
  struct State {
    std::vector<std::vector<std::byte>> slots;
    uint64_t updates = 0;
  };

  WorkerOptimizer(const Optimizer& rule, absl::Span<const TensorSpec> tensors);

  Optimizer rule_;
  Optimizer current_;  // with the learning rate of now
  std::vector<TensorSpec> tensors_;
  std::vector<State> states_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_WORKER_OPTIMIZER_H_
