// The dependencies that all jobs of a coordinator share.

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_JOB_DEPENDENCIES_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_JOB_DEPENDENCIES_H_

#include "common/clock.h"
#include "server/core/coordinator/coordinator_options.h"
#include "server/core/coordinator/memory_budget.h"
#include "server/core/jobs/jobs.h"
#include "server/core/membership/membership_dependencies.h"
#include "server/core/plan/journal.h"
#include "server/core/plan/store.h"
#include "server/core/plan_log/plan_log.h"

namespace syncgrads::server {

// The Coordinator owns the objects, and they outlive its jobs. `log`, `budget` and `store` are
// protected by Coordinator::mutex_. The others are read-only or take their own locks after it.
struct JobDependencies {
  const CoordinatorOptions& options;
  PlanLog& log;
  MemoryBudget& budget;
  // The jobs of server 0; only read.
  const Jobs& own;
  // The clock of leases.
  const Clock& clock;
  Journal& journal;
  // Null: nothing is stored, and a restart loses the jobs.
  Store* store = nullptr;

  // The part of them that the classes of server/core/membership/ use.
  MembershipDependencies membership() const {
    return {options.membership, log, own, clock, journal};
  }
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_JOB_DEPENDENCIES_H_
