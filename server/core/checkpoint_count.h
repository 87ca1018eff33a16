// What a job's workers have said of their checkpoints.

#ifndef SYNCGRADS_SERVER_CORE_CHECKPOINT_COUNT_H_
#define SYNCGRADS_SERVER_CORE_CHECKPOINT_COUNT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace syncgrads::server {

struct CheckpointReport {
  uint64_t step = 0;
  // Where it is, or why there is none.
  absl::StatusOr<std::string> path;
};

struct CheckpointCount {
  uint64_t written = 0;
  uint64_t failed = 0;
  // Of the last that was written.
  uint64_t last_step = 0;
  std::string last_path;
  // Of the last that failed.
  std::string last_error;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_CHECKPOINT_COUNT_H_
