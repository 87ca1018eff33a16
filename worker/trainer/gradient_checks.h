// Checks and clips the whole gradient on the host.

#ifndef SYNCGRADS_WORKER_TRAINER_GRADIENT_CHECKS_H_
#define SYNCGRADS_WORKER_TRAINER_GRADIENT_CHECKS_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/train/step_guard.h"
#include "worker/trainer/replica.h"

namespace syncgrads {

// Returns whether the gradient may be used: StepGuard::Admit of its norm. An error names the first
// number that is not finite.
absl::StatusOr<bool> AdmitGradient(absl::Span<const HostParameter> parameters, StepGuard& guard);

// Scales the gradients of `which` parameters down to this norm together, if it is positive and
// theirs is larger.
void ClipGradients(absl::Span<const HostParameter> parameters, absl::Span<const size_t> which,
                   double norm);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_GRADIENT_CHECKS_H_
