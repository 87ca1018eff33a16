// The layer states of all workers: for example running statistics.

#ifndef SYNCGRADS_WORKER_TRAINER_LAYER_STATES_H_
#define SYNCGRADS_WORKER_TRAINER_LAYER_STATES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/gradient_engine.h"
#include "worker/trainer/replica.h"
#include "worker/trainer/training_run.h"

namespace syncgrads {

// Each worker has its own layer states. What is evaluated and written is their mean over the
// workers. The methods use the states on the host. Not thread-safe.
class LayerStates {
 public:
  LayerStates(const TrainingRun& run, Replica& replica, const GradientEngine& engine)
      : run_(run), replica_(replica), engine_(engine) {}

  // Returns the bytes of this worker's states.
  std::string Own() const;
  // Returns Own of all workers, by rank, each with one more number, its recency. Empty if the
  // model has none, or if the job is elastic: its members change between steps. A collective.
  // Errors: DataLoss if another worker's states have another length; the team's.
  absl::StatusOr<std::vector<std::string>> Gather();
  // Sets the states to the mean over the workers whose states are the most recent, if `states`,
  // those of Gather, is not empty. Queues the upload.
  void UseMean(const std::vector<std::string>& states);
  // Sets the states to those of Own.
  absl::Status Use(const std::string& own);
  // Fetches the states and sets them to the mean over the workers, for good. A collective.
  absl::Status UseMeanForGood();

 private:
  const TrainingRun& run_;
  Replica& replica_;
  const GradientEngine& engine_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_LAYER_STATES_H_
