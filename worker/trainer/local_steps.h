// The mode in which a worker makes several steps alone between two synchronisations.

#ifndef SYNCGRADS_WORKER_TRAINER_LOCAL_STEPS_H_
#define SYNCGRADS_WORKER_TRAINER_LOCAL_STEPS_H_

#include <vector>

#include "absl/status/status.h"
#include "worker/data/loader.h"
#include "worker/trainer/gradient_engine.h"
#include "worker/trainer/mode.h"
#include "worker/trainer/replica.h"
#include "worker/trainer/solo_steps.h"
#include "worker/trainer/training_group.h"
#include "worker/trainer/training_run.h"
#include "worker/trainer/training_state.h"

namespace syncgrads {

// local_steps, after DiLoCo: in each cycle a worker makes a number of steps alone, and then
// contributes the change of its parameters. The servers apply an outer optimizer to the average of
// the changes. All workers continue from its result.
class LocalSteps : public Mode {
 public:
  // The arguments outlive the object.
  LocalSteps(TrainingRun& run, Replica& replica, GradientEngine& engine, TrainingGroup& group,
             TrainingState& state, SoloSteps& steps);

  absl::Status Run() override;

 private:
  // Makes the local steps of one cycle, and contributes the change of the parameters.
  absl::Status TrainCycle();
  // Pushes the parameters that the cycle began with minus the present ones.
  absl::Status PushChange();
  // Takes part in a cycle without a contribution.
  absl::Status FollowCycle();
  // Waits for the result of a cycle in which this worker used `rows`.
  absl::Status FinishCycle(const std::vector<RowId>& rows);

  TrainingRun& run_;
  Replica& replica_;
  GradientEngine& engine_;
  TrainingGroup& group_;
  TrainingState& state_;
  SoloSteps& steps_;
  // The numbers of all parameters.
  std::vector<size_t> all_;
  // By parameter: its bytes at the start of a cycle.
  std::vector<std::vector<char>> began_with_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_LOCAL_STEPS_H_
