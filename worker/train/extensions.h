// What a program of one's own adds to ps-worker: see docs/extending.md.

#ifndef SYNCGRADS_WORKER_TRAIN_EXTENSIONS_H_
#define SYNCGRADS_WORKER_TRAIN_EXTENSIONS_H_

#include <vector>

#include "worker/data/custom_readers.h"
#include "worker/nn/custom_layers.h"
#include "worker/nn/custom_losses.h"
#include "worker/train/step_callback.h"

namespace syncgrads {

// Not thread-safe while something is added.
struct Extensions {
  // That job files can name.
  CustomLayers layers;
  CustomLosses losses;
  CustomReaders readers;
  // One after the other, after each step of a worker.
  std::vector<StepCallback> after_step;
};

// Those of a program that adds nothing.
inline const Extensions& NoExtensions() {
  static const auto& none = *new Extensions();
  return none;
}

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_EXTENSIONS_H_
