// Callbacks that a user's program adds, called after each step.

#ifndef SYNCGRADS_WORKER_TRAIN_STEP_CALLBACK_H_
#define SYNCGRADS_WORKER_TRAIN_STEP_CALLBACK_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace syncgrads {

// A step after which this worker's parameters have been updated.
struct MadeStep {
  // The number of the step, from 1.
  uint64_t step = 0;
  // The number of steps in the plan.
  uint64_t steps = 0;
  // The loss of this worker's batch; nullopt if it had none.
  std::optional<double> loss;
  // This worker's rank, and the number of workers.
  uint32_t rank = 0;
  uint32_t world_size = 1;
  // Writes the current model to `path` in the format of --output. Errors: those of
  // SaveModel.
  std::function<absl::Status(const std::string& path)> save;
};

// Called on each worker after each of its steps, on the trainer's thread, before the next
// step begins: other workers may wait for it. An error ends this worker's training and is
// its result.
using StepCallback = std::function<absl::Status(const MadeStep& made)>;

// Returns a callback that saves the model on rank 0 after every `every` (at least 1)
// steps: "m.safetensors" becomes "m.step100.safetensors".
StepCallback SaveEvery(uint64_t every, std::string path);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_STEP_CALLBACK_H_
