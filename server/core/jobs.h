// The jobs of one server, as the coordinator's changes make them.

#ifndef SYNCGRADS_SERVER_CORE_JOBS_H_
#define SYNCGRADS_SERVER_CORE_JOBS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "server/core/closers.h"
#include "server/core/job.h"
#include "server/core/journal.h"
#include "server/core/plan_change.h"
#include "server/core/store.h"
#include "server/state/state_directory.h"

namespace syncgrads::server {

// Thread-safe. Changes are applied one after the other, by one caller.
class Jobs {
 public:
  // What changes and closed rounds are kept in, over a crash.
  struct State {
    const StateDirectory* directory = nullptr;
    Store* store = nullptr;
  };

  // `clock` must outlive this object, and so must `journal`, which is told which
  // rounds a dropped member had kept waiting; it may be null.
  // `closers` is as for Job.
  Jobs(ServerIndex self, const Clock& clock, Journal* journal = nullptr, Closers* closers = nullptr)
      : self_(self), clock_(clock), journal_(journal), closers_(closers) {}

  // Takes back what was stored, and stores what is applied from now on. To be
  // called first, if at all. Returns what is held for epochs that have not come.
  //
  // Errors:
  //   DataLoss, Unavailable  a closed round is damaged; nothing has been taken back
  absl::StatusOr<std::vector<HeldRounds>> Restore(State state, const PlanStart& start,
                                                  const std::vector<PlanChange>& changes);

  // Applies a change that follows the last one; one that was applied before is
  // ignored. For an EpochProposed, returns the oldest rounds that nobody here has
  // contributed to, by group.
  std::vector<GroupRound> Apply(const PlanChange& change);

  // Where the jobs tell who has arrived at rounds with a quorum.
  ArrivalRelay& arrivals() { return to_coordinator_.arrivals; }
  // Of all jobs, again.
  std::vector<Arrival> NewestArrivals() const;
  // Where they tell their parts of norms, and those of all jobs, again. The sink must
  // not call the coordinator; see ToCoordinator.
  ReducedRelay& reduced() { return to_coordinator_.reduced; }
  std::vector<ReducedChunk> Reduced() const;

  // The newest change that was applied, and the plan that it belongs to.
  uint64_t applied() const;
  uint64_t plan() const;

  // Not OK when a change could not be stored; none is applied from then on.
  absl::Status status() const;

  // Drops all jobs: they belong to a plan that is no more. Begins as `start` says.
  void StartAfresh(const PlanStart& start);

  // Null if there is no such job.
  std::shared_ptr<Job> Find(absl::string_view name) const;
  std::vector<std::shared_ptr<Job>> All() const;

  // Tells the journal what was wrong with gradients since the last call.
  void ReportAlerts() const;

  // The coordinator has closed a job, and has no other.
  bool all_done() const;

 private:
  // Of a server that has no job left, and follows.
  void ForgetClosed();
  std::vector<GroupRound> ApplyTo(Job& job, const PlanChange& change) const;
  void ReportAlerts(const Job& job) const;
  // Says which open rounds a dropped member is missing in.
  void NoteDrop(const Job& job, const MemberGone& gone) const;

  const ServerIndex self_;
  const Clock& clock_;
  Journal* const journal_;
  Closers* const closers_;
  ToCoordinator to_coordinator_;

  State state_;

  mutable Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  uint64_t plan_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, std::shared_ptr<Job>, std::less<>> jobs_ ABSL_GUARDED_BY(mutex_);
  uint64_t applied_ ABSL_GUARDED_BY(mutex_) = 0;
  bool all_done_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_JOBS_H_
