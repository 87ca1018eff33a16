// Counts of the checkpoints that a job's workers have reported.

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_CHECKPOINT_COUNT_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_CHECKPOINT_COUNT_H_

#include <cstdint>
#include <string>

namespace syncgrads::server {

struct CheckpointCount {
  uint64_t written = 0;
  uint64_t failed = 0;
  // The last checkpoint that was written.
  uint64_t last_step = 0;
  std::string last_path;
  // The error of the last one that failed.
  std::string last_error;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_CHECKPOINT_COUNT_H_
