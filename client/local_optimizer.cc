#include "client/local_optimizer.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "common/optim/optimizer.h"
#include "common/optim/update.h"
#include "common/status_macros.h"

namespace syncgrads {

absl::StatusOr<LocalOptimizer> LocalOptimizer::Create(const Optimizer& rule,
                                                      absl::Span<const TensorSpec> tensors) {
  SYNCGRADS_RETURN_IF_ERROR(Validate(rule));
  for (const TensorSpec& tensor : tensors) {
    if (tensor.dtype == DType::kF32 || tensor.dtype == DType::kF64) continue;
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", tensor.name, "\" is ",
                                                   ToString(tensor),
                                                   ", but an optimizer supports only f32 and f64"));
  }
  return LocalOptimizer(rule, tensors);
}

LocalOptimizer::LocalOptimizer(const Optimizer& rule, absl::Span<const TensorSpec> tensors)
    : rule_(rule),
      current_(rule),
      tensors_(tensors.begin(), tensors.end()),
      states_(tensors.size()) {
  for (size_t t = 0; t < tensors.size(); ++t) {
    states_[t].slots.assign(SlotCount(rule), std::vector<std::byte>(tensors[t].bytes()));
  }
}

void LocalOptimizer::SetRateFactor(double factor) { current_ = WithRateFactor(rule_, factor); }

absl::Status LocalOptimizer::Apply(TensorId tensor, absl::Span<const std::byte> gradient,
                                   absl::Span<std::byte> parameters) {
  if (ToNumber(tensor) >= tensors_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", ToNumber(tensor), " is out of range; number of tensors: ", tensors_.size()));
  }
  const TensorSpec& spec = tensors_[ToNumber(tensor)];
  if (gradient.size() != spec.bytes() || parameters.size() != spec.bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gradient of ", gradient.size(), " bytes and parameters of ", parameters.size(),
        " bytes for tensor \"", spec.name, "\", which has ", spec.bytes(), " bytes"));
  }
  State& state = states_[ToNumber(tensor)];
  std::vector<std::byte*> slots;
  for (std::vector<std::byte>& slot : state.slots) slots.push_back(slot.data());
  UpdateTensor(current_, spec.dtype, ++state.updates, gradient.data(), spec.elements(),
               parameters.data(), slots);
  return absl::OkStatus();
}

int LocalOptimizer::slots() const { return SlotCount(rule_); }

absl::Span<std::byte> LocalOptimizer::slot(TensorId tensor, int slot) {
  return absl::MakeSpan(states_[ToNumber(tensor)].slots[slot]);
}

}  // namespace syncgrads
