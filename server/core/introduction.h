// What a worker says of itself to be admitted.

#ifndef SYNCGRADS_SERVER_CORE_INTRODUCTION_H_
#define SYNCGRADS_SERVER_CORE_INTRODUCTION_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/ids.h"

namespace syncgrads::server {

struct Introduction {
  uint32_t protocol_version = 0;
  std::string job;
  std::string token;
  std::string name;
  Incarnation incarnation{};
  std::optional<uint32_t> rank;
  uint32_t world_size = 0;
  std::string host;
  // It is on the coordinator's host and would share memory with servers there.
  bool shares_memory = false;
  // 0 on the first stream.
  Generation generation{};
  // The worker does not begin a job.
  bool only_running = false;
  // With `max_workers` the job is elastic; without, its members are those that it
  // starts with.
  uint32_t max_workers = 0;
  uint32_t min_workers = 0;
  // How long a member may be behind the others; zero: for ever.
  absl::Duration step_timeout;
};

// What can be wrong with it whatever the job.
//
// Errors:
//   InvalidArgument     no job name, no incarnation, no world size, a rank
//                       beyond it, or terms of an elastic job that contradict each
//                       other
//   FailedPrecondition  another protocol version
absl::Status CheckIntroduction(const Introduction& introduction);

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_INTRODUCTION_H_
