// Limits of the groups and chunks of one job.

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_GROUP_LIMITS_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_GROUP_LIMITS_H_

#include <cstdint>

namespace syncgrads::server {

struct GroupLimits {
  // Every name of a group or a collective counts until the job is closed.
  uint32_t max_groups = 1024;
  // The sum over all groups of the job.
  uint64_t max_chunks = 262'144;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_GROUP_LIMITS_H_
