// Who takes part in which job: admission, leases, registration, ends.
//
// Lives on server 0. Members speak to it over their links, and what follows for
// the rounds is told to every server through the plan log. A member hears of a
// change only after every server has applied it, so no server ever gets a push
// that it cannot place.
//
//   admitted ── all members are there ──▶ in an epoch ──┬─ Leave ──────────▶ gone
//                                                       └─ lease ends, or ─▶ gone,
//                                                          stream and grace   and a
//                                                                         new epoch
//
// A job is closed when its last member has gone.
//
// Thread-safe: one mutex. Links are sent to while it is held; they only queue.

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/group.h"
#include "common/mutex.h"
#include "server/core/job_signal.h"
#include "server/core/jobs.h"
#include "server/core/journal.h"
#include "server/core/plan_log.h"

namespace syncgrads::server {

struct CoordinatorOptions {
  absl::Duration heartbeat_interval = absl::Seconds(2);
  // A member not heard of for so long is dropped.
  absl::Duration lease = absl::Seconds(30);
  // A member whose stream broke is dropped after so long.
  absl::Duration stream_grace = absl::Seconds(5);
  // Bytes of memory that this server may still take; null: any number.
  std::function<uint64_t()> available_memory;
};

// What a worker says of itself to be admitted.
struct Introduction {
  uint32_t protocol_version = 0;
  std::string job;
  std::string token;
  std::string name;
  Incarnation incarnation{};
  std::optional<uint32_t> rank;
  uint32_t world_size = 0;
  std::string host;
  // 0 on the first stream.
  Generation generation{};
};

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

  // Admits a worker, or takes it back on a new stream.
  //
  // Errors:
  //   InvalidArgument     no job name, no incarnation, no world size, or a rank
  //                       beyond it
  //   FailedPrecondition  another protocol version or world size; the membership
  //                       is over; or the job has begun without this worker
  //   PermissionDenied    another token than the job's
  //   AlreadyExists       a live worker has the name or the rank
  //   ResourceExhausted   the job has its members
  //   Unavailable         the server is draining
  absl::StatusOr<MemberKey> Admit(const Introduction& introduction,
                                  std::shared_ptr<MemberLink> link);

  // What members say. Answers go to the member's link.
  void Heartbeat(const MemberKey& member);
  void Register(const MemberKey& member, uint64_t request, const GroupSpec& spec);
  // Of a request that could not be read.
  void Refuse(const MemberKey& member, uint64_t request, const absl::Status& error);
  void End(const MemberKey& member, uint64_t request, GroupId group, Round last_round,
           bool follows);
  void Leave(const MemberKey& member, uint64_t request, std::vector<GroupRound> last_rounds);
  void LinkBroken(const MemberKey& member, const MemberLink* link);

  // What servers say.
  absl::Status AttachServer(const ServerIdentity& server, std::shared_ptr<ServerLink> link);
  void DetachServer(ServerIndex server, const ServerLink* link);
  void Applied(ServerIndex server, const ServerLink* link, uint64_t sequence);
  // The answer to EpochProposed.
  void OpenRounds(ServerIndex server, uint64_t sequence, const std::vector<GroupRound>& rounds);

  // Drops members whose lease or grace has ended. To be called often.
  void Tick();

  // No new jobs from now on.
  void Drain();
  // Ends every job, for this reason.
  void CloseAll(const std::string& reason);

  uint64_t open_jobs() const;

 private:
  struct MemberState {
    Member member;
    std::optional<uint32_t> asked_rank;
    std::string host;
    std::shared_ptr<MemberLink> link;
    absl::Time last_heard;
    absl::Time link_broken = absl::InfiniteFuture();
    bool gone = false;
  };
  struct Registration {
    std::shared_ptr<const GroupPlan> plan;
    std::string by;
    uint64_t sequence;
  };
  // For a group that nobody has registered yet.
  struct RegistrationRequest {
    MemberKey member;
    uint64_t request;
    GroupSpec spec;
  };
  // Something to tell a member when all servers have applied a change.
  struct Pending {
    uint64_t sequence;
    MemberId member;
    JobSignal signal;
  };
  struct Proposal {
    uint64_t sequence;
    std::vector<bool> answered;  // by server
    std::map<GroupId, Round> first_rounds;
  };
  struct JobState {
    std::string name;
    std::string token;
    Generation generation{};
    uint32_t world_size = 0;
    uint32_t next_member = 0;
    std::map<MemberId, MemberState> members;
    // Empty until all members are there.
    Epoch epoch;
    bool epoch_told = false;
    std::optional<Proposal> proposal;
    std::map<std::string, Registration> groups;
    // What came while an epoch was proposed: a new group begins in the next.
    std::vector<RegistrationRequest> postponed;
    std::vector<uint64_t> bytes_per_server;
    std::vector<Pending> pending;
    // The change that closed it; 0 while it is open.
    uint64_t closed_by = 0;
  };

  absl::Status CheckLocked(const Introduction& introduction) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<JobState*> JobForLocked(const Introduction& introduction)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What a member is called that did not ask for a name.
  std::string NameForLocked(const JobState& job, std::optional<uint32_t> rank, MemberId id) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<MemberKey> ReturnLocked(JobState& job, MemberState& member,
                                         std::shared_ptr<MemberLink> link)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // ResourceExhausted, with both numbers, if this server's share of a group does
  // not fit its memory: contributions of all members, and two sets of results.
  // Servers are taken to have equal memory.
  absl::Status CheckMemoryLocked(const JobState& job, const GroupPlan& plan) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null unless the member is there and has not gone.
  MemberState* FindLocked(const MemberKey& key, JobState*& job)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RegisterLocked(const MemberKey& key, uint64_t request, const GroupSpec& spec)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WelcomeLocked(const JobState& job, const MemberState& member)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Begins the first epoch if everybody is there, or says what is missing.
  void TryStartLocked(JobState& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string WaitingForLocked(const JobState& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t AppendLocked(const JobState& job, decltype(PlanChange::kind) kind)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellWhenAppliedLocked(JobState& job, uint64_t sequence, MemberId member, JobSignal signal)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellAppliedLocked(JobState& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropLocked(JobState& job, MemberState& member, const std::string& reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Begins the change to an epoch without those who have gone.
  void ProposeEpochLocked(JobState& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FinishProposalLocked(JobState& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginEpochLocked(JobState& job, Epoch epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AllGoneLocked(const JobState& job) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseLocked(JobState& job, const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetClosedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CoordinatorOptions options_;
  Jobs& own_;
  const Clock& clock_;
  Journal& journal_;

  mutable Mutex mutex_;
  PlanLog log_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, JobState> jobs_ ABSL_GUARDED_BY(mutex_);
  // The newest generation of each job's name, so that a later job of the same
  // name is not taken for it.
  std::map<std::string, Generation> generations_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_H_
