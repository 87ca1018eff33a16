// The jobs of one server, created and changed by the coordinator's plan.

#ifndef SYNCGRADS_SERVER_CORE_JOBS_JOBS_H_
#define SYNCGRADS_SERVER_CORE_JOBS_JOBS_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "server/core/closing/closers.h"
#include "server/core/jobs/group_memory.h"
#include "server/core/jobs/job.h"
#include "server/core/jobs/to_coordinator.h"
#include "server/core/plan/group_preparation.h"
#include "server/core/plan/journal.h"
#include "server/core/plan/plan_change.h"
#include "server/core/plan/store.h"
#include "server/state/state_directory.h"

namespace syncgrads::server {

// The server process owns it.
//
// Thread-safe, but for the changes. These are made by one thread at a time, the plan thread: it
// calls Apply, Prepare and Reset. On server 0, GrpcServer owns this thread; on other servers,
// the Follower. Restore is called before any other thread uses this object. The other methods are
// called on any thread; on server 0 also by the coordinator, which may hold its lock.
//
// Lock order: `mutex_` comes last. It is held only to read or replace members. No job, store, relay
// or journal is called while it is held.
class Jobs {
 public:
  // The storage of what must survive a crash. Closed rounds are stored in `directory`. Changes are
  // stored in `store`; it is null on server 0, where the coordinator stores them.
  struct State {
    const StateDirectory* directory = nullptr;
    Store* store = nullptr;
  };

  // `clock`, `journal` and `closers` must outlive this object; the last two may be null. `journal`
  // receives warnings, for example about rounds that have waited for a dropped member. `closers`
  // close large rounds; null: the thread that brings the last contribution does.
  Jobs(ServerIndex self, const Clock& clock, Journal* journal = nullptr, Closers* closers = nullptr)
      : self_(self),
        clock_(clock),
        journal_(journal),
        closers_(closers),
        memory_([this](const GroupPrepared& state) { to_coordinator_.prepared.Send(state); },
                [this](uint64_t key) { RemoveResults(key); }) {}

  // Restores the jobs from the stored changes, and stores the changes that are applied from now on.
  // Call it at most once, before all other methods. If `changes` has groups, the state has a
  // directory. Returns the rounds that are held for epochs that were proposed and have not begun.
  //
  // If the file of a group is damaged or missing, this server abandons the group's job: it sets the
  // job's files aside, and StoreFailures has the job with DataLoss. Other jobs are restored.
  //
  // Errors:
  //   Unavailable  the file of a group cannot be read, or damaged files cannot be set aside; then
  //                nothing has been restored
  absl::StatusOr<std::vector<HeldRounds>> Restore(State state, const PlanStart& start,
                                                  const std::vector<PlanChange>& changes);

  // Applies a change that follows the last one. Idempotent: a change that was applied before is
  // ignored. For an EpochProposed, returns the oldest round of each group without a contribution on
  // this server.
  //
  // If the change cannot be stored, this server abandons the job: it ends the job's streams,
  // deletes its files, stores that the job was abandoned, and reports this to store_failures().
  // Other jobs continue.
  std::vector<GroupRound> Apply(const PlanChange& change);

  // Allocates the memory of a group that may be registered later, or frees it. Large memory is
  // allocated in the background. The progress is reported to prepared(). Idempotent.
  void Prepare(const GroupPreparation& preparation);

  // The relay to which jobs report arrivals at rounds with a quorum.
  ArrivalRelay& arrivals() { return to_coordinator_.arrivals; }
  // The newest arrivals of all jobs. They are reported again on a new stream to the coordinator.
  std::vector<Arrival> NewestArrivals() const;
  // The relay to which jobs report their parts of norms.
  ReducedRelay& reduced() { return to_coordinator_.reduced; }
  // All chunks that wait for norms. They are reported again on a new stream to the coordinator.
  std::vector<ReducedChunk> Reduced() const;
  // The relay to which the progress of Prepare is reported.
  PreparedRelay& prepared() { return to_coordinator_.prepared; }
  // The relay to which abandoned jobs are reported.
  StoreFailureRelay& store_failures() { return to_coordinator_.store_failures; }
  // The abandoned jobs that the coordinator has not closed yet. They are reported
  // again on a new stream to the coordinator.
  std::vector<StoreFailure> StoreFailures() const;

  // For each open job, the number of the oldest epoch that an open round may need; 0 if the job has
  // not begun.
  std::map<std::pair<std::string, Generation>, uint64_t> OldestEpochs() const;

  // The sequence number of the newest change that was applied.
  uint64_t applied() const;
  // The plan that the newest applied change belongs to.
  uint64_t plan() const;

  // Not OK if not even the end of a job could be stored. No change is applied from then on.
  absl::Status status() const;

  // Drops all jobs and deletes their files, because their plan has been replaced. The new plan
  // begins at `start`.
  void Reset(const PlanStart& start);

  // Null if this server has no such job.
  std::shared_ptr<Job> Find(absl::string_view name) const;
  // Finds the job for somebody who has shown `token`.
  //
  // Errors:
  //   NotFound          this server has no such job
  //   PermissionDenied  the job has another token
  absl::StatusOr<std::shared_ptr<Job>> FindFor(absl::string_view name,
                                               const std::string& token) const;
  std::vector<std::shared_ptr<Job>> All() const;
  // The most bytes that all jobs together take on this server; see Job::MemoryBytes.
  uint64_t MemoryBytes() const;

  // Writes the warnings about gradients since the last call to the journal.
  void ReportAlerts() const;

  // True if the coordinator has closed a job and had no other open job.
  bool all_done() const;

 private:
  // The results of a group that is being registered: those that were prepared, or newly allocated
  // ones.
  absl::StatusOr<GroupResults> ResultsFor(const Job& job, const GroupPlan& plan,
                                          const PlanChange& change);
  // Stores a change. If that fails, abandons the change's job and returns false.
  bool Keep(const PlanChange& change);
  // Restore: sets aside the files of the jobs that were abandoned because of damage.
  absl::Status SetAsideDamaged(const State& state,
                               const std::map<std::string, StoreFailure>& given_up,
                               const std::vector<PlanChange>& changes) const;
  // Ends the streams with `reason`, and deletes the files and the prepared memory, of a job that
  // was removed from `jobs_`.
  void End(Job& job, const absl::Status& reason);
  // Removes all stored changes. Call it only when no job is left.
  void ForgetClosed();
  void RemoveResults(uint64_t key) const;
  std::vector<GroupRound> ApplyTo(Job& job, const PlanChange& change) const;
  void ReportAlerts(const Job& job) const;
  void RecordAlert(const Job& job, const std::string& line) const;
  // Writes to the journal which open rounds have waited for the dropped member.
  void NoteDrop(Job& job, const MemberGone& gone) const;

  const ServerIndex self_;
  const Clock& clock_;
  Journal* const journal_;
  Closers* const closers_;
  ToCoordinator to_coordinator_;

  State state_;

  GroupMemory memory_;

  mutable Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  uint64_t plan_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::shared_ptr<Job>, std::less<>> jobs_ ABSL_GUARDED_BY(mutex_);
  // By name of the job.
  std::map<std::string, StoreFailure> given_up_ ABSL_GUARDED_BY(mutex_);
  uint64_t applied_ ABSL_GUARDED_BY(mutex_) = 0;
  bool all_done_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_JOBS_JOBS_H_
