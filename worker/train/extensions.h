// The plug-ins that a user's program adds to ps-worker: see docs/extending.md.

#ifndef SYNCGRADS_WORKER_TRAIN_EXTENSIONS_H_
#define SYNCGRADS_WORKER_TRAIN_EXTENSIONS_H_

#include <vector>

#include "worker/data/custom_readers.h"
#include "worker/nn/custom_layers.h"
#include "worker/nn/custom_losses.h"
#include "worker/train/step_callback.h"

namespace syncgrads {

// A program fills this before it starts workers. Thread-safe when nothing is added any
// more.
struct Extensions {
  // Job files can name these kinds.
  CustomLayers layers;
  CustomLosses losses;
  CustomReaders readers;
  // Called in this order after each step of a worker.
  std::vector<StepCallback> after_step;
};

// Returns the extensions of a program that adds nothing.
inline const Extensions& NoExtensions() {
  static const auto& none = *new Extensions();
  return none;
}

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_EXTENSIONS_H_
