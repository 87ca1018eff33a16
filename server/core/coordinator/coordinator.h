// The coordinator of all jobs: admits workers, watches their leases, registers groups, begins
// epochs, and closes jobs. There is one, on server 0; GrpcServer (server/server.cc) owns it.
//
// Members send requests on their Join streams. Every change that affects rounds is sent to
// all servers through the plan log. A member is informed of a new epoch or group only after
// every server has applied it, so no server receives a push that it cannot place.
//
// A job is closed when its last member is gone, when it stays abandoned for too long, when a worker
// replaces it by a new one, when a server has lost its state, or when a change cannot be stored.
//
// Thread-safe. One mutex protects all jobs. server/server.cc calls the methods on these
// threads:
//
//   thread                      methods
//   the starting thread         constructor, Restore, AttachOwn, Advertise
//   ControlThreads, or gRPC     Admit, Heartbeat, the requests of members, LinkBroken,
//     if they have no room      Checkpointed
//   gRPC, Follow streams        AttachServer, DetachServer, the reports of servers 1 and up
//   gRPC, Admin calls           Evict, Readmit, RequestCheckpoint, SetLearningRate, RequestTrace,
//                               Report, Servers, Drain
//   the threads of --metrics    Report, Curves, Servers
//   the thread of a trace       Report
//   server 0's plan thread      Applied, OpenRounds, Prepared, Reduced, for server 0
//   gRPC, data streams          Arrived, Reduced, for server 0
//   server 0's closers          Reduced, for server 0
//   server 0's allocation       Prepared, for server 0
//   thread (GroupMemory)
//   the ticker, every 50 ms     Tick
//   the thread of main          Drain, open_jobs, status
//   the destructor of the       CloseAll, Position
//   server
//
// Lock order: Job::change_mutex_, then Coordinator::mutex_, then every other lock. The plan
// thread can hold change_mutex_ of a job of server 0 when it calls Reduced. A caller holds no
// other lock. While mutex_ is held, the coordinator takes the locks of Jobs, Job and chunks
// (which it only reads), of AwakeClock and Pulse, of the streams behind MemberLink and
// ServerLink, of server 0's SerialThread, and of the Journal. Links and the Journal only
// queue. Store::Append writes to the disk while mutex_ is held.

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_COORDINATOR_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_COORDINATOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/group/group.h"
#include "common/mutex.h"
#include "common/signals/signals.h"
#include "server/core/coordinator/awake_clock.h"
#include "server/core/coordinator/coordinated_job.h"
#include "server/core/coordinator/coordinator_options.h"
#include "server/core/coordinator/job_report.h"
#include "server/core/coordinator/job_table.h"
#include "server/core/coordinator/memory_budget.h"
#include "server/core/coordinator/training_curves.h"
#include "server/core/jobs/jobs.h"
#include "server/core/membership/pulse.h"
#include "server/core/plan/journal.h"
#include "server/core/plan/member_link.h"
#include "server/core/plan/store.h"
#include "server/core/plan_log/plan_log.h"

namespace syncgrads::server {

class Coordinator {
 public:
  // Identifies a member in the calls that its Join stream makes. Admit returns it.
  struct MemberKey {
    std::string job;
    // Members of each job are numbered from 0, so another job of this name may have such a member.
    Generation generation{};
    MemberId member{};
    // Records the member's heartbeats; null if Admit did not return this key, or has dropped the
    // member.
    std::shared_ptr<Pulse> pulse = nullptr;
  };

  // `own` is the jobs of server 0; the coordinator only reads them. Server 0 follows the plan
  // like every other server, over the link that is passed to AttachOwn. `own`, `clock` and
  // `journal` must outlive this object.
  Coordinator(CoordinatorOptions options, PlanLog log, Jobs& own, const Clock& clock,
              Journal& journal);

  // Restores the jobs in `start` and `records`, and stores every change in `store` from now
  // on. `store` must outlive this object. If it is called, it is the first call. Every member
  // has a full lease to reconnect.
  void Restore(Store& store, const PlanStart& start, const std::vector<Stored>& records);

  // Sends the plan to server 0 from now on, over `link`. Call it once, before workers and
  // other servers connect, and after Restore. `held`: the rounds that Jobs::Restore returned,
  // which server 0 still holds for epochs proposed before a restart.
  void AttachOwn(std::shared_ptr<ServerLink> link, const std::vector<HeldRounds>& held = {});

  // Admits a worker, or reconnects a member on a new stream. `may_join`: why this worker may not
  // join the job; then only a member that sends its secret is admitted.
  //
  // Errors:
  //   InvalidArgument     a field is missing or malformed; see CheckHello
  //   FailedPrecondition  the protocol version or the job's terms differ; or the membership
  //                       is over
  //   DataLoss            a member reconnects, but this server has no record of its job
  //   Aborted             the job does not exist, and the worker does not begin one; or the
  //                       worker was evicted
  //   PermissionDenied    the token is not the job's, or the secret not the member's
  //   AlreadyExists       a live worker has the name or the rank
  //   ResourceExhausted   the job has all its members, or its data has ended; or it does not exist,
  //                       and the maximum number of jobs is open, or it is for too many workers;
  //                       or the admission cannot be stored
  //   Unavailable         the server is draining; or the job is being closed; or the
  //                       admission cannot be stored
  absl::StatusOr<MemberKey> Admit(const Hello& hello, std::shared_ptr<MemberLink> link,
                                  const absl::Status& may_join = absl::OkStatus());

  // Records a heartbeat. Does not take mutex_, so a heartbeat never waits for other work of
  // the coordinator. The figures passed CheckFigures.
  void Heartbeat(const MemberKey& member, syncgrads::Heartbeat heartbeat = {});

  // Requests of members. The answer to `request` is sent to the member's link. All of them
  // are ignored if the member is unknown, or if its job is: a message may arrive when the job is
  // closed and another one of its name is open.

  // Registers a group, or returns the plan of the registered one. `link_rate`: throughput of
  // the member's link in bytes per second; 0 if not known. Answer: Registered or Refused.
  void Register(const MemberKey& member, uint64_t request, const GroupSpec& spec,
                double link_rate = 0);
  // Answers a request that could not be parsed with Refused.
  void Refuse(const MemberKey& member, uint64_t request, const absl::Status& error);
  // Ends the member's data in a group: it contributes to no round after `last_round`.
  // `follows`: it still requests the results of later rounds. Answer: Done or Refused.
  void End(const MemberKey& member, uint64_t request, GroupId group, Round last_round,
           bool follows);
  // Ends the membership gracefully. `last_rounds`: the last round of each group that the member
  // took part in. Answer: Farewell or Refused.
  void Leave(const MemberKey& member, uint64_t request, std::vector<GroupRound> last_rounds);
  // Elastic jobs only: the member has its state, which belongs to `group`, and can send it to
  // newcomers. Answer: Done or Refused.
  void Ready(const MemberKey& member, uint64_t request, GroupId group);
  // The member's stream has ended. Ignored if the member has another stream by now.
  void LinkBroken(const MemberKey& member, const MemberLink* link);

  // Reports of servers. Where a method has a `link`, the report is ignored if the server has
  // another link by now.

  // Connects a server, for the first time or again, and sends it the changes that it lacks.
  // If the server has lost its state, closes all jobs with DataLoss.
  //
  // Errors:
  //   InvalidArgument, AlreadyExists, DataLoss  see PlanLog::Attach
  //   ResourceExhausted, Unavailable            the server's identity cannot be stored
  absl::Status AttachServer(const ServerIdentity& server, std::shared_ptr<ServerLink> link);
  void DetachServer(ServerIndex server, const ServerLink* link);
  // The server has applied all changes up to `sequence`.
  void Applied(ServerIndex server, const ServerLink* link, uint64_t sequence);
  // Memory in bytes that the server can still take.
  void HasRoom(ServerIndex server, const ServerLink* link, uint64_t bytes);
  // Quorum groups: members' contributions are complete on the server.
  void Arrived(ServerIndex server, const std::vector<Arrival>& arrivals);
  // Chunks on the server wait for norms. After it reconnects, a server repeats the report for
  // every chunk that still waits.
  void Reduced(ServerIndex server, const std::vector<ReducedChunk>& chunks);
  // The answer to ServerLink::Prepare: progress, or the end of the allocation.
  void Prepared(ServerIndex server, const GroupPrepared& prepared);
  // The server has given a job up. The next Tick closes the job.
  void StoreFailed(ServerIndex server, const StoreFailure& failure);
  // The answer to the EpochProposed change with this sequence number: the rounds that the
  // server holds. Ignored if no such proposal is open.
  void OpenRounds(ServerIndex server, uint64_t sequence, const std::vector<GroupRound>& rounds);

  // Sets the address, host:port, at which workers reach this server. Empty: workers use the
  // address at which they have reached the coordinator.
  void Advertise(std::string address) {
    MutexLock lock(mutex_);
    log_.Advertise(std::move(address));
  }

  // Requests a checkpoint after the current step from the connected members of the job's
  // epoch. Returns their number.
  //
  // Errors:
  //   NotFound            the job does not exist or is closed
  //   PermissionDenied    the token is not the job's
  //   FailedPrecondition  no member of the epoch is connected
  absl::StatusOr<uint32_t> RequestCheckpoint(const std::string& job, const std::string& token);
  // A worker reports the checkpoint that it has written, or why it could not write it.
  void Checkpointed(const MemberKey& member, const CheckpointReport& report);
  // Sets the factor by which the job's learning rates are multiplied, and returns the number of the
  // epoch that has it: the next one, or the present one if it has this factor. `by`, for people to
  // read, is who sets it.
  //
  // Errors:
  //   NotFound            the job does not exist or is closed
  //   PermissionDenied    the token is not the job's
  //   InvalidArgument     the factor is out of range; see CheckRateFactor
  //   FailedPrecondition  the job has not begun, its data has ended, or the factor applies to none
  //                       of its groups
  //   ResourceExhausted, Unavailable
  //                       the factor cannot be stored; it has not changed
  absl::StatusOr<uint64_t> SetLearningRate(const std::string& job, const std::string& token,
                                           double factor, const std::string& by);
  // A member sets that factor. It receives Done when every server has applied the epoch that has
  // the factor, or Refused with one of the errors above.
  void SetLearningRate(const MemberKey& member, uint64_t request, double factor);
  // Asks the members of the job's epoch that have a number in `traces` to record their events, each
  // as the trace of its own number. Returns these members, in rank order; one that is not connected
  // does not receive the signal. If the length is zero, asks them to end their recordings of these
  // numbers.
  //
  // Errors:
  //   NotFound          the job does not exist or is closed
  //   PermissionDenied  the token is not the job's
  absl::StatusOr<std::vector<MemberReport>> RequestTrace(const std::string& job,
                                                         const std::string& token,
                                                         const std::map<MemberId, uint64_t>& traces,
                                                         absl::Duration length);
  // For status reports. All zeros, without members, if the job does not exist.
  JobReport Report(const std::string& job) const;
  // For status reports: what the job's members have reported about its training, with times of the
  // clock that was passed to the constructor. Empty if the job does not exist.
  TrainingCurves Curves(const std::string& job) const;
  // For status reports: all servers, by index.
  std::vector<ServerReport> Servers() const;

  // Drops the worker of this name. Until the job ends or the worker is readmitted, workers
  // with its name, rank or incarnation are refused with Aborted.
  //
  // Errors:
  //   NotFound           the job does not exist or is closed, or has no such worker
  //   PermissionDenied   the token is not the job's
  //   ResourceExhausted  the job has kMaxEvicted evicted workers
  absl::Status Evict(const std::string& job, const std::string& token, const std::string& worker,
                     const std::string& reason);
  // Lifts the eviction of the worker of this name; it may join again.
  //
  // Errors:
  //   NotFound          the job does not exist or is closed, or no worker of this name was
  //                     evicted
  //   PermissionDenied  the token is not the job's
  //   ResourceExhausted, Unavailable  the change cannot be stored
  absl::Status Readmit(const std::string& job, const std::string& token, const std::string& worker);

  // Does everything that depends on time, for every open job: drops members whose lease or
  // grace period has ended, decides quorums, sends allocation progress, and closes jobs that
  // have failed, have no member left, or were abandoned for too long. Call it at least every
  // `longest_gap` / 2; a longer gap counts as a pause of the process.
  void Tick();

  // From now on refuses new jobs; abandoned jobs are closed at the next Tick.
  void Drain();
  // Closes every job. Its members receive `reason`.
  void CloseAll(const std::string& reason);

  // The number of open jobs, and of closed ones whose end has not reached everyone yet.
  uint64_t open_jobs() const;
  // Not OK once the end of a job could not be stored: this server must exit.
  absl::Status status() const;

  // The plan's position. The owner stores it at an orderly exit, for the next coordinator.
  PlanStart Position() const;

 private:
  // The member's job, which may be closed; null if it was forgotten.
  CoordinatedJob* FindLocked(const MemberKey& member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Opens the job for its first worker, if the worker may begin one; see Admit for the errors.
  absl::StatusOr<CoordinatedJob*> OpenLocked(const Hello& hello)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Memory in bytes that the server can still take; nullopt if not known.
  std::optional<uint64_t> AvailableLocked(ServerIndex server) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CoordinatorOptions options_;
  Jobs& own_;
  const Clock& clock_;
  // The clock of leases: it does not count pauses of this process.
  const AwakeClock awake_;
  Journal& journal_;

  mutable Mutex mutex_;
  Store* store_ ABSL_GUARDED_BY(mutex_) = nullptr;
  PlanLog log_ ABSL_GUARDED_BY(mutex_);
  // Shared by all jobs. Declared before `jobs_`, so that it outlives them.
  MemoryBudget budget_ ABSL_GUARDED_BY(mutex_);
  JobTable jobs_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_COORDINATOR_H_
