// The state of a server and of its jobs, as one message for the Admin service and for metrics.

#ifndef SYNCGRADS_SERVER_SERVICE_ADMIN_SERVER_STATUS_H_
#define SYNCGRADS_SERVER_SERVICE_ADMIN_SERVER_STATUS_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/net/open_connections.h"
#include "proto/admin.pb.h"
#include "server/core/coordinator/coordinator.h"
#include "server/core/jobs/jobs.h"
#include "server/core/jobs/recovery.h"
#include "server/service/control/follower.h"
#include "server/service/control/server_loads.h"
#include "server/service/data/payload_bytes.h"
#include "server/state/state_directory.h"

namespace syncgrads::server {

// What a StatusReport reads. The objects must outlive it. The functions are called on any thread,
// with the lock of the StatusReport held.
struct StatusSources {
  ServerIndex self{};
  const Jobs& jobs;
  // Null on a server that follows.
  const Coordinator* coordinator = nullptr;
  const Traffic& traffic;
  const Clock& clock;
  // Returns the memory in bytes that is free for new groups.
  std::function<uint64_t()> memory_free;
  // Returns the bytes that memory_free is a part of; 0 if they are not known.
  std::function<uint64_t()> memory_total;
  // Null if no state is kept.
  const StateDirectory* state = nullptr;
  const Recovery* recovery = nullptr;
  // See the fields of the same names in ServerStatus.
  std::string coordinator_address;
  bool shares_memory = false;
  std::string congestion_control;
  // On the coordinator: what the other servers have reported. Null on a server that follows.
  const ServerLoads* loads = nullptr;
  // Returns the number of wrong tokens.
  std::function<uint64_t()> wrong_tokens;
};

// Removes the paths of checkpoints and of the state directory, and the errors that contain them.
void HidePaths(v1::GetStatusReply& reply);

// Thread-safe. Takes the locks of the sources, one after the other; none of them is held while the
// arithmetic of a round with the policy Sync, or with a quorum, is done.
class StatusReport {
 public:
  explicit StatusReport(StatusSources sources);

  // From now on, reports `connections`, and the connection to the coordinator
  // of `follower`. Either may be null, and both must be replaced by null before they are destroyed.
  void SetConnections(const OpenConnections* connections, const Follower* follower);
  // From now on, reports that new jobs are refused.
  // Returns false if it was set before.
  bool SetDraining();
  // The server has looked after its jobs.
  void Ticked();

  // Fills in `reply`, which must be empty. Members have no incarnations and no hashes of secrets.
  void FillStatus(v1::GetStatusReply& reply) const;
  // Fills in the server's index, whether it refuses new jobs, whether it has a connection to the
  // coordinator, and when it last looked after its jobs.
  void FillReadiness(v1::GetStatusReply& reply) const;
  v1::ServerLoad Load() const;
  // Returns the rounds per second, as in GroupStatus, of the job's group that has made most rounds
  // on this server; 0 if there is none.
  double StepsPerSecond(const std::string& job) const;
  // Fills in `curves`, which must be empty. It remains empty on a server that follows.
  void FillCurves(v1::Curves& curves) const;

 private:
  void FillServer(v1::ServerStatus& status) const;
  void FillJob(const Job& job, v1::JobStatus& status) const;

  const StatusSources sources_;
  const absl::Time started_;

  mutable Mutex mutex_;
  const OpenConnections* connections_ ABSL_GUARDED_BY(mutex_) = nullptr;
  const Follower* follower_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time ticked_at_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_SERVICE_ADMIN_SERVER_STATUS_H_
