// One run of real servers and workers under a schedule, and the checks of its outcome.

#ifndef SYNCGRADS_TESTS_FAULT_RUN_H_
#define SYNCGRADS_TESTS_FAULT_RUN_H_

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/fault/cluster.h"
#include "tests/fault/schedule.h"

namespace syncgrads::fault {

struct RunOptions {
  Programs programs;
  // For the files and the state of the run. Created and not removed.
  std::string directory;
  // If a process still runs after this time, the run has failed.
  absl::Duration deadline = absl::Seconds(90);
  // If all workers of a job are dropped, its servers must keep it until the workers are back. A job
  // that ends without a worker that has finished is then a failure.
  bool jobs_are_kept = false;
};

struct RunReport {
  // The model that the workers wrote at the end; it is the same for all.
  std::string model;
  // No worker had the job's state any more, so the job ended. This is the expected outcome.
  bool state_lost = false;
  // The number of steps in which only a part of the contribution of a dead worker was counted.
  int partial_steps = 0;
  // The number of remaining checkpoints. Each has the model of the replay.
  int checkpoints = 0;
  // For each kill of servers: the time from the moment when they listen again to the end of the
  // next step that none of them can have closed before.
  std::vector<absl::Duration> outages;
};

// Runs the schedule and checks the outcome:
//
//   - Every process ends as it should.
//   - The event logs pass CheckHistory().
//   - The models of all workers that finished have the same bytes as the replay of the event logs.
//     The same holds for checkpoints.
//   - If only servers are disturbed, there is one epoch.
//
// Errors: the first violation, as text. The directory has the logs.
absl::StatusOr<RunReport> RunSchedule(const Schedule& schedule, const RunOptions& options);

// Runs schedules like RunSchedule(), and also compares the model with that of an undisturbed run of
// the same job. The undisturbed run is made when it is first needed. Thread-safe. The processes of
// a run end with the thread that runs it.
class Comparison {
 public:
  explicit Comparison(RunOptions options) : options_(std::move(options)) {}
  // Runs in DirectoryOf(schedule).
  absl::StatusOr<RunReport> Run(const Schedule& schedule);
  // Returns a subdirectory of `options.directory`.
  std::string DirectoryOf(const Schedule& schedule) const;

 private:
  struct Reference {
    std::mutex mutex;                  // held while the run is made
    std::optional<std::string> model;  // guarded by mutex
  };

  absl::StatusOr<std::string> UndisturbedModel(const JobKind& job);

  const RunOptions options_;
  std::mutex mutex_;
  // Guarded by mutex_; each element is guarded by its own mutex.
  std::map<JobKind, Reference> references_;
};

}  // namespace syncgrads::fault

#endif  // SYNCGRADS_TESTS_FAULT_RUN_H_
