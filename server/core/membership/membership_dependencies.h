// The dependencies that the classes of this folder share.

#ifndef SYNCGRADS_SERVER_CORE_MEMBERSHIP_MEMBERSHIP_DEPENDENCIES_H_
#define SYNCGRADS_SERVER_CORE_MEMBERSHIP_MEMBERSHIP_DEPENDENCIES_H_

#include "common/clock.h"
#include "server/core/jobs/jobs.h"
#include "server/core/membership/membership_options.h"
#include "server/core/plan/journal.h"
#include "server/core/plan_log/plan_log.h"

namespace syncgrads::server {

// The Coordinator owns the objects, and they outlive its jobs. `log` is protected by
// Coordinator::mutex_. The others are read-only or take their own locks after it.
struct MembershipDependencies {
  const MembershipOptions& options;
  // Only read: a job's changes are appended through its JobPlan.
  const PlanLog& log;
  // The jobs of server 0; only read.
  const Jobs& own;
  // The clock of leases.
  const Clock& clock;
  Journal& journal;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_MEMBERSHIP_MEMBERSHIP_DEPENDENCIES_H_
