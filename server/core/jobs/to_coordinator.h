// What a server reports to its coordinator about its jobs.

#ifndef SYNCGRADS_SERVER_CORE_JOBS_TO_COORDINATOR_H_
#define SYNCGRADS_SERVER_CORE_JOBS_TO_COORDINATOR_H_

#include "server/core/plan/group_preparation.h"
#include "server/core/plan/plan_change.h"
#include "server/core/plan/relay.h"
#include "server/core/plan/step_norms.h"
#include "server/core/rounds/arrivals.h"

namespace syncgrads::server {

using PreparedRelay = Relay<GroupPrepared>;
using StoreFailureRelay = Relay<StoreFailure>;

// Arrivals at rounds with a quorum, parts of norms, the progress of allocations that were
// requested, and jobs that the server has abandoned. Jobs owns it.
//
// Sinks are called on any thread, without locks that the coordinator's methods take. A job's
// `change_mutex_` may be held: a sink must not apply a change to a job.
struct ToCoordinator {
  ArrivalRelay arrivals;
  ReducedRelay reduced;
  PreparedRelay prepared;
  StoreFailureRelay store_failures;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_JOBS_TO_COORDINATOR_H_
