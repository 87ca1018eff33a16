#include "client/distributed_optimizer.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/group/layout.h"
#include "common/status_macros.h"

namespace syncgrads {

DistributedOptimizer::DistributedOptimizer(Group* group, std::vector<void*> parameters,
                                           ApplyGradient apply)
    : group_(group),
      parameters_(std::move(parameters)),
      apply_(std::move(apply)),
      scratch_(group->layout().tensors().size()) {}

void* DistributedOptimizer::Scratch(TensorId tensor) {
  std::vector<std::byte>& scratch = scratch_[ToNumber(tensor)];
  scratch.resize(group_->layout().tensor(tensor).bytes());
  return scratch.data();
}

absl::StatusOr<std::vector<Contributors>> DistributedOptimizer::Update(
    absl::Span<void* const> gradients, absl::Duration timeout) {
  return Update(gradients, 1, timeout);
}

absl::StatusOr<std::vector<Contributors>> DistributedOptimizer::Update(
    absl::Span<void* const> gradients, double weight, absl::Duration timeout) {
  const Layout& layout = group_->layout();
  const size_t tensors = layout.tensors().size();
  if (gradients.size() != tensors || parameters_.size() != tensors) {
    return absl::InvalidArgumentError(absl::StrCat(
        gradients.size(), " gradients and ", parameters_.size(), " parameters for group \"",
        group_->spec().name, "\", which has ", tensors, " tensors"));
  }
  if (std::holds_alternative<Optimizer>(group_->spec().rule)) {
    return absl::InvalidArgumentError(absl::StrCat("group \"", group_->spec().name,
                                                   "\" already has its optimizer on the servers"));
  }
  SYNCGRADS_RETURN_IF_ERROR(group_->SetWeight(weight));
  std::vector<void*> reduced(tensors);
  for (uint32_t t = 0; t < tensors; ++t) {
    const TensorId tensor{t};
    reduced[t] = gradients[t] != nullptr ? gradients[t] : Scratch(tensor);
    SYNCGRADS_RETURN_IF_ERROR(
        gradients[t] != nullptr
            ? group_->Push(tensor, gradients[t], layout.tensor(tensor).bytes(), gradients[t])
            : group_->Skip(tensor, reduced[t]));
  }
  return Complete(reduced, timeout);
}

absl::StatusOr<std::vector<Contributors>> DistributedOptimizer::Complete(
    absl::Span<void* const> gradients, absl::Duration timeout) {
  const Layout& layout = group_->layout();
  SYNCGRADS_ASSIGN_OR_RETURN(std::vector<Contributors> contributors, group_->WaitStep(timeout));
  for (uint32_t t = 0; t < gradients.size(); ++t) {
    if (contributors[t].most == 0) continue;
    const size_t bytes = layout.tensor(TensorId{t}).bytes();
    SYNCGRADS_RETURN_IF_ERROR(
        apply_(TensorId{t}, absl::MakeConstSpan(static_cast<const std::byte*>(gradients[t]), bytes),
               absl::MakeSpan(static_cast<std::byte*>(parameters_[t]), bytes)));
  }
  return contributors;
}

absl::StatusOr<uint64_t> DistributedOptimizer::Finish(absl::Duration timeout) {
  SYNCGRADS_RETURN_IF_ERROR(group_->End(timeout));
  std::vector<void*> reduced(group_->layout().tensors().size());
  for (uint32_t t = 0; t < reduced.size(); ++t) reduced[t] = Scratch(TensorId{t});
  uint64_t updates = 0;
  while (true) {
    SYNCGRADS_RETURN_IF_ERROR(group_->SkipAll(reduced));
    const auto contributors = Complete(reduced, timeout);
    if (absl::IsOutOfRange(contributors.status())) return updates;
    SYNCGRADS_RETURN_IF_ERROR(contributors.status());
    ++updates;
  }
}

}  // namespace syncgrads
