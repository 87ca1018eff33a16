#include "worker/train/worker_optimizer.h"

#include <limits>
#include <variant>

#include "common/optim/optimizer.h"
#include "common/optim/update.h"
#include "common/status_macros.h"

namespace syncgrads {

absl::StatusOr<WorkerOptimizer> WorkerOptimizer::Create(const Optimizer& rule,
                                                        absl::Span<const TensorSpec> tensors) {
  SYNCGRADS_RETURN_IF_ERROR(Validate(rule));
  return WorkerOptimizer(rule, tensors);
}

WorkerOptimizer::WorkerOptimizer(const Optimizer& rule, absl::Span<const TensorSpec> tensors)
    : rule_(rule),
      current_(rule),
      tensors_(tensors.begin(), tensors.end()),
      states_(tensors.size()) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    states_[i].slots.assign(static_cast<size_t>(SlotCount(rule)),
                            std::vector<std::byte>(tensors[i].bytes()));
  }
}

int WorkerOptimizer::slots() const { return SlotCount(rule_); }

void WorkerOptimizer::SetRateFactor(double factor) {
  current_ = rule_;
  std::visit(
      [factor](auto& rule) {
        rule.learning_rate *= factor;
        // Optimizers take normal numbers and 0.
        if (rule.learning_rate < std::numeric_limits<float>::min()) rule.learning_rate = 0;
      },
      current_);
}

void WorkerOptimizer::Apply(size_t index, const std::byte* gradient, std::byte* values) {
  State& state = states_[index];
  std::vector<const std::byte*> old_slots;
  std::vector<std::byte*> new_slots;
  for (std::vector<std::byte>& slot : state.slots) {
    old_slots.push_back(slot.data());
    new_slots.push_back(slot.data());
  }
  const TensorSpec& tensor = tensors_[index];
  ApplyUpdate(current_, tensor.dtype, ++state.updates, gradient, tensor.elements(), values, values,
              old_slots, new_slots);
}

}  // namespace syncgrads
