// The factors of a model's parameters: parameter_rules and decay_kernels_only of the job file.

#ifndef SYNCGRADS_WORKER_JOB_PARAMETER_RULES_H_
#define SYNCGRADS_WORKER_JOB_PARAMETER_RULES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/group/layout.h"
#include "common/optim/optimizer.h"
#include "proto/job.pb.h"

namespace syncgrads {

// Returns the factors of each parameter. A parameter with the learning rate factor 0 is frozen.
//
// Errors:
//   InvalidArgument  a name of a rule matches no parameter; or all parameters are frozen
absl::StatusOr<std::vector<TensorFactors>> FactorsOf(const v1::JobFile& job,
                                                     absl::Span<const TensorSpec> parameters);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_PARAMETER_RULES_H_
