// How the workers of a job train together.

#ifndef SYNCGRADS_WORKER_TRAINER_MODE_H_
#define SYNCGRADS_WORKER_TRAINER_MODE_H_

#include "absl/status/status.h"

namespace syncgrads {

// There is one implementation for each way to combine the work of the workers: Together,
// LocalSteps, and BestOf. The Trainer owns one. Not thread-safe.
class Mode {
 public:
  virtual ~Mode() = default;

  // Trains until the rows of all workers are used up, or until the validations end the training.
  // Errors: those of Trainer::Train.
  virtual absl::Status Run() = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_MODE_H_
