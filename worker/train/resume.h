// What a training run goes on from.

#ifndef SYNCGRADS_WORKER_TRAIN_RESUME_H_
#define SYNCGRADS_WORKER_TRAIN_RESUME_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "worker/checkpoint/checkpoint_directory.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/job/job_file.h"
#include "worker/train/team.h"

namespace syncgrads {

// A state that one of the workers has, and that all of them go on from.
struct Resumption {
  Manifest manifest;
  uint32_t root = 0;
  // At the root.
  std::optional<Snapshot> snapshot;
};

// Where the job's checkpoints are, and which are kept. The job has some.
CheckpointDirectory::Options CheckpointOptionsOf(const Job& job);

// Where a run goes on from; nothing if it begins. If workers have `kept` their state,
// that of the one that is furthest, of these the lowest rank; else the newest sound
// checkpoint, which rank 0 reads, if the job has any. Without `resume` there must be
// none. `note` is given a line for each that is damaged, and for what is found. A
// collective.
//
// Errors, which all workers get:
//   FailedPrecondition  there are checkpoints, and `resume` is false; or they are of
//                       more workers' data than can be shared out as it was
//   InvalidArgument     the newest is of another job, dtype, seed or optimizer;
//                       names both
//   others              as CheckpointDirectory::ReadNewest, or as the team
absl::StatusOr<std::optional<Resumption>> FindResumption(
    const Job& job, bool resume, std::optional<Snapshot> kept, Team& team,
    const std::function<void(const std::string&)>& note);

// The job, with as many shards as the run had that it goes on from.
Job JobFor(const Job& job, const Manifest& manifest);

// An error, or OK, as it is told to the other workers of a team; and back.
std::string EncodeStatus(const absl::Status& status);
absl::Status DecodeStatus(absl::string_view bytes);

// "sgd", "adam", ...
std::string OptimizerName(const v1::Optimizer& optimizer);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_RESUME_H_
