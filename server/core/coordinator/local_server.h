// Server 0 as a follower of its own coordinator: it applies the plan like every other server.

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_LOCAL_SERVER_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_LOCAL_SERVER_H_

#include <functional>
#include <utility>

#include "server/core/coordinator/coordinator.h"
#include "server/core/jobs/jobs.h"
#include "server/core/plan_log/plan_log.h"

namespace syncgrads::server {

// A link that applies changes to the jobs of this process and reports the result to the
// coordinator, as a remote server does. Send and Prepare are called while Coordinator::mutex_ is
// held and only queue; the work runs on the executor (in server/server.cc, the plan thread).
// Thread-safe. The PlanLog owns it.
class LocalServer : public ServerLink {
 public:
  // Runs closures later, one after the other, in order. It must not run them in the call
  // itself: the caller holds Coordinator::mutex_, which the closures take.
  using Executor = std::function<void(std::function<void()>)>;

  // `jobs`, `coordinator` and this object must outlive the closures that `run` receives.
  LocalServer(Jobs& jobs, Coordinator& coordinator, Executor run)
      : jobs_(jobs), coordinator_(coordinator), run_(std::move(run)) {}

  void Send(const PlanChange& change) override;
  void Prepare(const GroupPreparation& preparation) override;

 private:
  void Apply(const PlanChange& change);

  Jobs& jobs_;
  Coordinator& coordinator_;
  const Executor run_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_LOCAL_SERVER_H_
