// Which of a model's parameters are compressed, and how.

#ifndef SYNCGRADS_WORKER_TRAIN_COMPRESSION_H_
#define SYNCGRADS_WORKER_TRAIN_COMPRESSION_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/codec/encoding.h"
#include "common/layout.h"
#include "proto/job.pb.h"

namespace syncgrads {

// By the rules of the job file: one for each parameter, or none where nothing is
// compressed. The rules have passed the job file's check.
//
// Errors:
//   InvalidArgument  a rule names parameters that there are not
absl::StatusOr<std::vector<Compression>> CompressionOf(const v1::JobFile& job,
                                                       absl::Span<const TensorSpec> parameters);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_COMPRESSION_H_
