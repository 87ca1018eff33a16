#include "worker/trainer/replica.h"

#include "absl/strings/str_cat.h"

namespace syncgrads {

TensorSpec Replica::SlotSpec(const TensorSpec& parameter, int slot) {
  TensorSpec spec = parameter;
  spec.name = absl::StrCat("optimizer/", slot, "/", parameter.name);
  return spec;
}

std::vector<NamedTensor> Replica::Values() const {
  std::vector<NamedTensor> tensors;
  for (const HostParameter& parameter : parameters_) {
    tensors.push_back({parameter.spec, parameter.values});
  }
  return tensors;
}

}  // namespace syncgrads
