// The jobs of a coordinator: which are open, and which are closed but kept until every server and
// member has been informed. Also the generations of the jobs that have ended.
//
//   no job ── Open ──▶ open ── Close ──▶ closed ── ForgetClosed: everyone has been informed ──▶
//                                                  no job; its generation is remembered

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_JOB_TABLE_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_JOB_TABLE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/signals/signals.h"
#include "server/core/coordinator/coordinated_job.h"
#include "server/core/coordinator/generations.h"
#include "server/core/coordinator/job_dependencies.h"
#include "server/core/plan/store.h"

namespace syncgrads::server {

// Not thread-safe; owned by the Coordinator and protected by Coordinator::mutex_. Restore, Open,
// Close and ForgetClosed write to the disk.
class JobTable {
 public:
  // A server that applies no changes would otherwise let closed jobs pile up.
  static constexpr size_t kMostClosedJobs = 10'000;

  // Everything in `dependencies`, and `clock`, must outlive this object. `clock` measures how long
  // the names of closed jobs are remembered. `most_closed`: the maximum number of closed jobs that
  // are kept.
  JobTable(const JobDependencies& dependencies, const Clock& clock,
           size_t most_closed = kMostClosedJobs)
      : dependencies_(dependencies),
        clock_(clock),
        most_closed_(most_closed),
        generations_({.first = dependencies.options.first_generation}) {}
  JobTable(const JobTable&) = delete;
  JobTable& operator=(const JobTable&) = delete;

  // Restores the plan log and the jobs from `start` and `records`, and stores every change in
  // `store` from now on. `store` must outlive this object. If it is called, it is the first call.
  void Restore(Store& store, const PlanStart& start, const std::vector<Stored>& records);

  // All jobs by name, including those that are closed and not forgotten yet.
  const std::map<std::string, std::unique_ptr<CoordinatedJob>>& all() const { return jobs_; }
  // The job of this name, which may be closed; null if there is none.
  CoordinatedJob* Find(const std::string& name) const;
  // The open job of this name.
  //
  // Errors:
  //   NotFound  there is no such job, or it is closed
  absl::StatusOr<CoordinatedJob*> FindOpen(const std::string& name) const;
  bool any_open() const;
  // Whether a member reconnects with a generation of which this coordinator has no record. A
  // newer job of the same name may exist.
  bool IsUnknownGeneration(const Hello& hello) const;

  // Opens a job for its first worker. There must be no job of this name. If `max_jobs` are open,
  // closes the one that has been abandoned for the longest time among those that have not trained;
  // see CoordinatedJob::HasTrained.
  //
  // Errors:
  //   ResourceExhausted               the job is for more than `max_workers` workers
  //   ResourceExhausted               `max_jobs` are open, and none of them can be closed; or
  //                                   `most_closed` are closed and not forgotten
  //   ResourceExhausted, Unavailable  the job cannot be stored
  absl::StatusOr<CoordinatedJob*> Open(const Hello& hello);
  // Closes one of these jobs; its members receive `reason`. Does nothing if it is closed.
  void Close(CoordinatedJob& job, const std::string& reason,
             absl::StatusCode code = absl::StatusCode::kAborted);
  // Removes closed jobs whose end has reached everyone; see CoordinatedJob::CanBeForgotten. If no
  // job is left and every server has applied every change, replaces the stored records by the
  // plan's position.
  void ForgetClosed();

  // The plan's position, with the newest generation of each job.
  PlanStart Position() const;
  // Not OK once the end of a job could not be stored. The first error is kept.
  const absl::Status& status() const { return status_; }

 private:
  // Makes room for one more open job; see Open. Errors: ResourceExhausted.
  absl::Status MakeRoom();
  // Replaces the stored records by the plan's position, if none of them is needed any more.
  void ForgetStored();

  JobDependencies dependencies_;
  const Clock& clock_;
  const size_t most_closed_;
  std::map<std::string, std::unique_ptr<CoordinatedJob>> jobs_;
  Generations generations_;
  // The newest generation of each job name when this coordinator started.
  std::map<std::string, Generation> generations_at_start_;
  absl::Status status_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_JOB_TABLE_H_
