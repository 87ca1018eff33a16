// The mode in which the workers train alone and take over the best worker's model.

#ifndef SYNCGRADS_WORKER_TRAINER_BEST_OF_H_
#define SYNCGRADS_WORKER_TRAINER_BEST_OF_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/mode.h"
#include "worker/trainer/replica.h"
#include "worker/trainer/solo_steps.h"
#include "worker/trainer/training_run.h"
#include "worker/trainer/training_state.h"

namespace syncgrads {

// best_of: makes cycles of steps alone. After each cycle all workers take the state of the worker
// whose model has the least loss on the held-out rows. Nothing is pushed.
class BestOf : public Mode {
 public:
  // The arguments outlive the object.
  BestOf(TrainingRun& run, Replica& replica, TrainingState& state, SoloSteps& steps)
      : run_(run), replica_(replica), state_(state), steps_(steps) {}

  absl::Status Run() override;

 private:
  // Evaluates this worker's model, and takes the state of the worker with the least loss.
  // A collective.
  absl::Status TakeBestState();

  TrainingRun& run_;
  Replica& replica_;
  TrainingState& state_;
  SoloSteps& steps_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_BEST_OF_H_
