// What a program of one's own does after steps.

#ifndef SYNCGRADS_WORKER_TRAIN_STEP_CALLBACK_H_
#define SYNCGRADS_WORKER_TRAIN_STEP_CALLBACK_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace syncgrads {

// A step that this worker has made: its parameters are updated.
struct MadeStep {
  // Counts from 1.
  uint64_t step = 0;
  // Those that were planned.
  uint64_t steps = 0;
  // Of this worker's batch, if it had one.
  std::optional<double> loss;
  // Of this worker, and of how many.
  uint32_t rank = 0;
  uint32_t world_size = 1;
  // Writes the model as it is now, with --output's format. Errors: as SaveModel.
  std::function<absl::Status(const std::string& path)> save;
};

// Called on each worker after each of its steps, between it and the next: the others may
// wait for it. An error ends the worker's training with it.
using StepCallback = std::function<absl::Status(const MadeStep& made)>;

// Saves the model after every `every` (at least 1) steps, on rank 0: "m.safetensors"
// becomes "m.step100.safetensors".
StepCallback SaveEvery(uint64_t every, std::string path);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_STEP_CALLBACK_H_
