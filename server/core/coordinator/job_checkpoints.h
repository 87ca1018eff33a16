// The checkpoints of one job: requests to its members, and a count of their reports.

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_JOB_CHECKPOINTS_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_JOB_CHECKPOINTS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/signals/membership.h"
#include "server/core/coordinator/checkpoint_count.h"
#include "server/core/membership/job_identity.h"
#include "server/core/membership/job_members.h"
#include "server/core/plan/journal.h"

namespace syncgrads::server {

// Not thread-safe; owned by a CoordinatedJob and protected by Coordinator::mutex_.
class JobCheckpoints {
 public:
  // The arguments must outlive this object.
  JobCheckpoints(const JobIdentity& job, Journal& journal, const JobMembers& members)
      : job_(job), journal_(journal), members_(members) {}
  JobCheckpoints(const JobCheckpoints&) = delete;
  JobCheckpoints& operator=(const JobCheckpoints&) = delete;

  // Requests a checkpoint from the epoch's connected members and returns their number.
  //
  // Errors:
  //   FailedPrecondition  no member of the epoch is connected
  absl::StatusOr<uint32_t> Request(const Epoch& epoch) const;
  // Counts and logs a member's report. Ignored if the member is unknown or gone.
  void Report(MemberId id, const CheckpointReport& report);
  const CheckpointCount& count() const { return count_; }

 private:
  const JobIdentity& job_;
  Journal& journal_;
  const JobMembers& members_;
  CheckpointCount count_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_JOB_CHECKPOINTS_H_
