#include "worker/trainer/gradient_checks.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/kernels/finite.h"
#include "common/optim/clip.h"

namespace syncgrads {
namespace {

double NumberAt(const MutableTensor& tensor, size_t index) {
  if (tensor.dtype == DType::kF64) return reinterpret_cast<const double*>(tensor.data)[index];
  return static_cast<double>(reinterpret_cast<const float*>(tensor.data)[index]);
}

// Names the first number that is not finite: "; "dense1/kernel" is nan at index 3".
// Empty if all are finite.
std::string WhereNotFinite(absl::Span<const HostParameter> parameters) {
  for (const HostParameter& parameter : parameters) {
    const MutableTensor& gradient = parameter.gradient;
    const size_t index = FirstNonFinite(gradient.dtype, gradient.data, gradient.elements);
    if (index == gradient.elements) continue;
    return absl::StrCat("; \"", parameter.spec.name, "\" is ", NumberAt(gradient, index),
                        " at index ", index);
  }
  return "";
}

}  // namespace

absl::StatusOr<bool> AdmitGradient(absl::Span<const HostParameter> parameters, StepGuard& guard) {
  std::vector<MutableTensor> gradients;
  for (const HostParameter& parameter : parameters) gradients.push_back(parameter.gradient);
  const double norm = GlobalNorm(gradients);
  if (!guard.watches_norms() && std::isfinite(norm)) return true;
  const absl::StatusOr<bool> admitted = guard.Admit(norm);
  if (admitted.ok()) return admitted;
  return absl::Status(admitted.status().code(),
                      absl::StrCat(admitted.status().message(), WhereNotFinite(parameters)));
}

void ClipGradients(absl::Span<const HostParameter> parameters, absl::Span<const size_t> which,
                   double norm) {
  if (!(norm > 0)) return;
  std::vector<MutableTensor> gradients;
  for (const size_t i : which) gradients.push_back(parameters[i].gradient);
  ClipToNorm(gradients, norm);
}

}  // namespace syncgrads
