// One run of real servers and workers under a schedule, and what is to be said of it.

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
  // For the run's files, with state; made, and left.
  std::string directory;
  // Every process has ended by then, or the run has failed.
  absl::Duration deadline = absl::Seconds(90);
};

struct RunReport {
  // What a worker wrote in the end, all of them the same.
  std::string model;
  // Nobody had the job's state any more, so that it ended, as it has to.
  bool state_lost = false;
  // Steps in which the contribution of a worker that died was counted in part.
  int partial_steps = 0;
  // That were left, all of which read as the replay has it.
  int checkpoints = 0;
  // From the moment that killed servers listened again until a step was closed that
  // none of them had closed before.
  std::vector<absl::Duration> outages;
};

// Runs to the end and checks: every process ends as it should; the event logs pass
// CheckHistory; the models of all workers that finished have equal bytes, and those of
// a replay from the event logs, and so are the checkpoints; where only servers died,
// there is one epoch.
//
// Errors: the first thing that is wrong, in words; the directory has the logs.
absl::StatusOr<RunReport> RunSchedule(const Schedule& schedule, const RunOptions& options);

// As RunSchedule, and compares with the undisturbed run of the same job, which it
// makes when it is first needed. Thread-safe; the threads outlive their runs.
class Comparison {
 public:
  explicit Comparison(RunOptions options) : options_(std::move(options)) {}
  // In a folder of `options.directory`.
  absl::StatusOr<RunReport> Run(const Schedule& schedule);
  // That folder.
  std::string DirectoryOf(const Schedule& schedule) const;

 private:
  struct Reference {
    std::mutex mutex;                  // held while the run is made
    std::optional<std::string> model;  // guarded by mutex
  };

  absl::StatusOr<std::string> UndisturbedModel(const JobKind& job);

  const RunOptions options_;
  std::mutex mutex_;
  std::map<JobKind, Reference> references_;  // guarded by mutex_, what is in them is not
};

}  // namespace syncgrads::fault

#endif  // SYNCGRADS_TESTS_FAULT_RUN_H_
