// The plug-ins that a user's program adds to ps-worker: see docs/extending.md.

#ifndef SYNCGRADS_WORKER_TRAIN_EXTENSIONS_H_
#define SYNCGRADS_WORKER_TRAIN_EXTENSIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/readers/custom_readers.h"
#include "worker/nn/custom_losses.h"
#include "worker/nn/layers/custom_layers.h"
#include "worker/report/progress.h"
#include "worker/train/step_callback.h"

namespace syncgrads {

// The worker whose training a logger logs.
struct LoggedWorker {
  std::string name;
  uint32_t rank = 0;
};

// Makes a logger, which receives the events of one worker's run, or returns null if this worker
// needs none. An error ends the worker.
using MakeLogger =
    std::function<absl::StatusOr<std::unique_ptr<Progress>>(const LoggedWorker& worker)>;

// A program fills this before it starts workers. Thread-safe when nothing is added any
// more.
struct Extensions {
  // Job files can name these kinds.
  CustomLayers layers;
  CustomLosses losses;
  CustomReaders readers;
  // Called in this order after each step of a worker.
  std::vector<StepCallback> after_step;
  // Called once for each worker that trains, before its first step.
  std::vector<MakeLogger> loggers;
};

// Returns the extensions of a program that adds nothing.
inline const Extensions& NoExtensions() {
  static const auto& none = *new Extensions();
  return none;
}

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_EXTENSIONS_H_
