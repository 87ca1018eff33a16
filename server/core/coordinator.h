// Who takes part in which job: admission, leases, registration, ends.
//
// Lives on server 0. Members speak to it over their links, and what follows for
// the rounds is told to every server through the plan log. A member hears of a
// change only after every server has applied it, so no server ever gets a push
// that it cannot place.
//
// A job is closed when its last member has gone.
//
// Thread-safe: one mutex. Links are sent to while it is held; they only queue.

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/group.h"
#include "common/mutex.h"
#include "server/core/checkpoint_count.h"
#include "server/core/coordinated_job.h"
#include "server/core/coordinator_options.h"
#include "server/core/introduction.h"
#include "server/core/job_signal.h"
#include "server/core/jobs.h"
#include "server/core/journal.h"
#include "server/core/plan_log.h"
#include "server/core/store.h"

namespace syncgrads::server {

class Coordinator {
 public:
  struct MemberKey {
    std::string job;
    MemberId member{};
  };

  // `own` is this server's jobs; it, `clock` and `journal` must outlive this
  // object.
  Coordinator(CoordinatorOptions options, PlanLog log, Jobs& own, const Clock& clock,
              Journal& journal);

  // Takes back what was stored, and stores what is said from now on. To be called
  // first, if at all, after `own` was restored: `held` is what that returned.
  // Members have a whole lease to come back.
  void Restore(Store& store, const PlanStart& start, const std::vector<Stored>& records,
               const std::vector<HeldRounds>& held);

  // Admits a worker, or takes it back on a new stream.
  //
  // Errors:
  //   InvalidArgument     no job name, no incarnation, no world size, or a rank
  //                       beyond it
  //   FailedPrecondition  another protocol version or other terms than the job's;
  //                       or the membership is over
  //   DataLoss            a member comes back, and nothing is known of its job
  //   Aborted             there is no job, and the worker does not begin one
  //   PermissionDenied    another token than the job's
  //   AlreadyExists       a live worker has the name or the rank
  //   ResourceExhausted   the job has its members, or has come to its end
  //   Unavailable         the server is draining
  absl::StatusOr<MemberKey> Admit(const Introduction& introduction,
                                  std::shared_ptr<MemberLink> link);

  // What members say. Answers go to the member's link. `progress` is the newest
  // round of each group that the member has pushed a part of.
  void Heartbeat(const MemberKey& member, const std::vector<GroupRound>& progress = {});
  // `link_rate`: what the member's link takes, in bytes a second; 0: not known.
  void Register(const MemberKey& member, uint64_t request, const GroupSpec& spec,
                double link_rate = 0);
  // Of a request that could not be read.
  void Refuse(const MemberKey& member, uint64_t request, const absl::Status& error);
  void End(const MemberKey& member, uint64_t request, GroupId group, Round last_round,
           bool follows);
  void Leave(const MemberKey& member, uint64_t request, std::vector<GroupRound> last_rounds);
  void Ready(const MemberKey& member, uint64_t request, GroupId group);
  void LinkBroken(const MemberKey& member, const MemberLink* link);

  // What servers say.
  absl::Status AttachServer(const ServerIdentity& server, std::shared_ptr<ServerLink> link);
  void DetachServer(ServerIndex server, const ServerLink* link);
  void Applied(ServerIndex server, const ServerLink* link, uint64_t sequence);
  // It could still take so many bytes.
  void HasRoom(ServerIndex server, const ServerLink* link, uint64_t bytes);
  // Contributions are complete on a server.
  void Arrived(ServerIndex server, const std::vector<Arrival>& arrivals);
  // Chunks on a server wait for norms. A server that attaches again says it again.
  void Reduced(ServerIndex server, const std::vector<ReducedChunk>& chunks);
  // The answer to EpochProposed.
  void OpenRounds(ServerIndex server, uint64_t sequence, const std::vector<GroupRound>& rounds);

  // Asks a job's workers for a checkpoint after the step under way; returns how many
  // it has.
  //
  // Errors:
  //   NotFound            no such job
  //   PermissionDenied    another token than the job's
  //   FailedPrecondition  no worker trains
  absl::StatusOr<uint32_t> AskForCheckpoint(const std::string& job, const std::string& token);
  // What a worker says of one.
  void Checkpointed(const MemberKey& member, const CheckpointReport& report);
  CheckpointCount checkpoints(const std::string& job) const;

  // Drops the worker of this name, for good.
  //
  // Errors:
  //   NotFound          no such job, or no such worker in it
  //   PermissionDenied  another token than the job's
  absl::Status Evict(const std::string& job, const std::string& token, const std::string& worker,
                     const std::string& reason);

  // Drops members whose lease or grace has ended. To be called often.
  void Tick();

  // No new jobs from now on.
  void Drain();
  // Ends every job, for this reason.
  void CloseAll(const std::string& reason);

  uint64_t open_jobs() const;

  // Where the plan stands, for a coordinator that starts when all jobs have ended.
  PlanStart Position() const;

 private:
  // Whether a member comes back to a job that nothing is known of any more, though it
  // may have been begun again since.
  bool IsForgottenLocked(const Introduction& introduction) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null if there is no such job.
  CoordinatedJob* FindLocked(const std::string& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<CoordinatedJob*> OpenLocked(const Introduction& introduction)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseLocked(CoordinatedJob& job, const std::string& reason,
                   absl::StatusCode code = absl::StatusCode::kAborted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  JobSurroundings SurroundingsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return {options_, log_, own_, clock_, journal_, store_};
  }
  PlanStart PositionLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Once no job is left, what was stored of them need not be.
  void ForgetStoredLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetClosedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CoordinatorOptions options_;
  Jobs& own_;
  const Clock& clock_;
  Journal& journal_;

  mutable Mutex mutex_;
  Store* store_ ABSL_GUARDED_BY(mutex_) = nullptr;
  PlanLog log_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::unique_ptr<CoordinatedJob>> jobs_ ABSL_GUARDED_BY(mutex_);
  // The newest generation of each job's name, so that a later job of the same
  // name is not taken for it.
  std::map<std::string, Generation> generations_ ABSL_GUARDED_BY(mutex_);
  // The same when this coordinator started.
  std::map<std::string, Generation> generations_at_start_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_H_
