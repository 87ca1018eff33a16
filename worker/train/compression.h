// Decides which of a model's parameters are compressed, and how.

#ifndef SYNCGRADS_WORKER_TRAIN_COMPRESSION_H_
#define SYNCGRADS_WORKER_TRAIN_COMPRESSION_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/codec/encoding.h"
#include "common/group/layout.h"
#include "proto/job.pb.h"

namespace syncgrads {

// Returns the compression of each parameter by the rules of the job file; empty if the
// job has no rules. ParseJobFile has checked the rules.
//
// Errors:
//   InvalidArgument  a rule names a parameter that the model does not have
absl::StatusOr<std::vector<Compression>> CompressionOf(const v1::JobFile& job,
                                                       absl::Span<const TensorSpec> parameters);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_COMPRESSION_H_
