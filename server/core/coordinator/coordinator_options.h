// Timeouts and limits of the coordinator.

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_COORDINATOR_OPTIONS_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_COORDINATOR_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "common/ids.h"
#include "server/core/coordinator/group_limits.h"
#include "server/core/membership/membership_options.h"

namespace syncgrads::server {

struct CoordinatorOptions {
  MembershipOptions membership;
  // If the coordinator does nothing for longer than this, its process was paused. The pause does
  // not count against leases; see AwakeClock.
  absl::Duration longest_gap = absl::Milliseconds(500);
  // Returns the memory in bytes that server 0 can still take. Null: no limit. Called while
  // Coordinator::mutex_ is held.
  std::function<uint64_t()> available_memory;
  // The smallest generation of a new job. It must be larger than every generation that an
  // earlier coordinator, whose state is lost, can have assigned.
  Generation first_generation{1};
  GroupLimits group_limits;
  // The maximum number of open jobs.
  uint32_t max_jobs = 1000;
  // The maximum number of workers for which a job may be opened.
  uint32_t max_workers = 4096;
  // Returns the steps per second of a job on server 0, for its curves; 0 if the job is not there.
  // Null: 0 for every job. Called while Coordinator::mutex_ is held.
  std::function<double(const std::string& job)> steps_per_second = nullptr;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_COORDINATOR_OPTIONS_H_
