// The state that a step changes: as tensors, and as a snapshot.

#ifndef SYNCGRADS_WORKER_TRAINER_TRAINING_STATE_H_
#define SYNCGRADS_WORKER_TRAINER_TRAINING_STATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/train/resume.h"
#include "worker/trainer/replica.h"
#include "worker/trainer/training_group.h"
#include "worker/trainer/training_run.h"
#include "worker/trainer/validator.h"

namespace syncgrads {

// The tensors point to the memory of the run, the replica, and this object. Not thread-safe.
class TrainingState {
 public:
  // The arguments outlive the object.
  TrainingState(TrainingRun& run, Replica& replica, Validator& validator);

  // Returns what a newcomer needs: the data position, counters, the record of validations, all
  // parameters, their averages, the slots of an optimizer on this worker and, with local_steps, the
  // job's learning rate factor.
  std::vector<NamedTensor> ForNewcomers();
  // Returns everything but this worker's position in its rows: counters, parameters, slots and
  // layer states.
  std::vector<NamedTensor> WithoutPosition();

  // Copy the counts of the run and of the optimizer to the counters, and back. RestoreUpdates
  // leaves the run's number of steps as it is.
  void SaveCounters();
  void RestoreCounters();
  void RestoreUpdates();

  // Copies the state on the host, after the last SaveCounters. `states` are those of
  // LayerStates::Gather.
  Snapshot TakeSnapshot(const std::vector<std::string>& states);
  // Restores the state in `from` on all workers, and in `group` if the optimizer is on the servers.
  // A collective. Frees the snapshot. Errors: NotFound or InvalidArgument if the snapshot does not
  // fit the job; DataLoss if another worker has sent something malformed; the team's.
  absl::Status Restore(Resumption& from, TrainingGroup& group);

 private:
  // Returns the data position, the counters and the record of validations.
  std::vector<NamedTensor> Position();
  NamedTensor CountersTensor();
  // Sets `tensors` from `snapshot`.
  absl::Status Load(const Snapshot& snapshot, absl::Span<const NamedTensor> tensors);
  // Broadcasts the root's `tensors`, and the layer states that its snapshot has of `saved_workers`
  // workers, of which each worker takes its own. A collective.
  absl::Status BroadcastFrom(const Resumption& from, uint64_t saved_workers,
                             std::vector<NamedTensor> tensors);

  TrainingRun& run_;
  Replica& replica_;
  Validator& validator_;
  // The number of steps, then each parameter's number of updates.
  std::vector<int64_t> counters_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_TRAINING_STATE_H_
