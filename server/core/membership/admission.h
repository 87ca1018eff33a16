// Decides whether a worker may join a job, and keeps the list of evicted workers.

#ifndef SYNCGRADS_SERVER_CORE_MEMBERSHIP_ADMISSION_H_
#define SYNCGRADS_SERVER_CORE_MEMBERSHIP_ADMISSION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/signals/signals.h"
#include "server/core/membership/job_epochs.h"
#include "server/core/membership/job_identity.h"
#include "server/core/membership/job_members.h"
#include "server/core/plan_log/job_plan.h"

namespace syncgrads::server {

// Not thread-safe; owned by a CoordinatedJob and protected by Coordinator::mutex_.
class Admission {
 public:
  // How a worker is admitted.
  struct Decision {
    // The member that reconnects; nullopt if the worker becomes a new member.
    std::optional<MemberId> returning;
    // The members that a new member replaces: they have its name or rank, and no stream.
    std::vector<MemberId> superseded;
    // The number of present members besides the new one and those that it replaces.
    size_t others = 0;
  };

  // The arguments must outlive this object. `clock` is the clock of leases.
  Admission(const JobIdentity& job, const Clock& clock, const JobPlan& plan,
            const JobMembers& members, const JobEpochs& epochs)
      : job_(job), clock_(clock), plan_(plan), members_(members), epochs_(epochs) {}
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // Decides how a worker is admitted; changes nothing.
  //
  // Errors:
  //   Unavailable         the job is being closed
  //   PermissionDenied    the token is not the job's, or the secret is not the member's
  //   FailedPrecondition  the generation or the terms differ; or the membership is over
  //   Aborted             the worker was evicted
  //   AlreadyExists       a live worker has the name or the rank
  //   ResourceExhausted   the job has all its members, or its data has ended
  absl::StatusOr<Decision> Decide(const Hello& hello) const;
  // Whether the worker is a member that has a secret, and has sent it.
  bool IsMember(const Hello& hello) const;
  // The refusal of workers that join after the job's data has ended: ResourceExhausted.
  absl::Status EndOfData() const;

  // Whether another member can be evicted.
  //
  // Errors:
  //   ResourceExhausted  the job has kMaxEvicted evicted workers
  absl::Status CheckMayEvict() const;
  // Evicts a member: until Readmit, workers with its name, rank or incarnation are refused.
  void Evict(const JobMember& member, absl::string_view reason);
  // Whether a worker of this name is evicted.
  bool IsEvicted(absl::string_view worker) const;
  // Lifts the evictions of the workers of this name.
  void Readmit(absl::string_view worker);

 private:
  struct Evicted {
    std::string name;
    std::optional<uint32_t> rank;
    Incarnation incarnation{};
    std::string reason;
  };

  // Aborted if this worker was evicted.
  absl::Status CheckNotEvicted(const Hello& hello) const;
  // ResourceExhausted if the job cannot admit another worker besides `others`.
  absl::Status CheckRoom(size_t others) const;

  const JobIdentity& job_;
  const Clock& clock_;
  const JobPlan& plan_;
  const JobMembers& members_;
  const JobEpochs& epochs_;
  std::vector<Evicted> evicted_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_MEMBERSHIP_ADMISSION_H_
