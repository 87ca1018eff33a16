// Finds the state from which a training run resumes.

#ifndef SYNCGRADS_WORKER_TRAIN_RESUME_H_
#define SYNCGRADS_WORKER_TRAIN_RESUME_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "worker/checkpoint/checkpoint_directory.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/job/job_file.h"
#include "worker/team/team.h"

namespace syncgrads {

// A state from which all workers resume. One worker, the root, has it.
struct Resumption {
  Manifest manifest;
  uint32_t root = 0;
  // Set on the root only.
  std::optional<Snapshot> snapshot;
};

// Returns where the job's checkpoints are and which are kept. The job must have
// checkpoints.
CheckpointDirectory::Options CheckpointOptionsOf(const Job& job);

// Finds the state from which a run resumes; nullopt if the run starts from the beginning.
// A collective.
//
// If workers have `kept` their state after a failed attempt, the root is the worker with
// the most steps; in a tie, the lowest rank. Otherwise, if the job has checkpoints, rank
// 0 reads the newest one that is not damaged. If `resume` is false, there must be no
// checkpoint. `note` is called with a line for each damaged checkpoint and for the
// result.
//
// Errors, which all workers get:
//   FailedPrecondition  there are checkpoints, and `resume` is false; or the checkpoint has
//                       fewer shards than there are workers
//   InvalidArgument     the newest checkpoint has another job, dtype, seed, optimizer or
//                       division of the data; names both
//   Aborted             the root has gone
//   DataLoss            another worker has sent something malformed
//   others              the errors of CheckpointDirectory::ReadNewest, or the team's
absl::StatusOr<std::optional<Resumption>> FindResumption(
    const Job& job, bool resume, std::optional<Snapshot> kept, Team& team,
    const std::function<void(const std::string&)>& note);

// Returns the job with the number of shards that the resumed run had.
Job JobFor(const Job& job, const Manifest& manifest);

// Encode and decode a status, to send it to the other workers of a team.
std::string EncodeStatus(const absl::Status& status);
absl::Status DecodeStatus(absl::string_view bytes);

// Returns the name in the job file: "sgd", "adam", ...
std::string OptimizerName(const v1::Optimizer& optimizer);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_RESUME_H_
