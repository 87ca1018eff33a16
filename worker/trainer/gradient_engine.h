// Computes the gradient of a batch of rows.

#ifndef SYNCGRADS_WORKER_TRAINER_GRADIENT_ENGINE_H_
#define SYNCGRADS_WORKER_TRAINER_GRADIENT_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/batches/batch_reader.h"
#include "worker/data/loader.h"
#include "worker/nn/device.h"
#include "worker/nn/loss.h"
#include "worker/nn/models/model.h"
#include "worker/trainer/training_run.h"

namespace syncgrads {

// From rows to the gradient: reads the rows, ahead of time if the job says so; computes the batch
// in parts (gradient accumulation) if it has micro_batches; adds the gradient of the l2 penalty;
// and downloads each gradient while the layers before are computed. It neither pushes nor applies
// gradients, so it does not depend on how the workers train together.
//
// Not thread-safe.
class GradientEngine {
 public:
  // A batch: its step, counted from 0, and its rows, at least one.
  struct Batch {
    uint64_t step;
    const std::vector<RowId>& rows;
    // Returns the rows of the step that is `steps` (at least 1) after this one; empty if they are
    // not known yet.
    absl::FunctionRef<std::vector<RowId>(size_t steps)> rows_ahead;
  };
  using Hook = absl::FunctionRef<absl::Status(size_t parameter)>;
  using WaitHook = absl::FunctionRef<absl::StatusOr<bool>()>;

  virtual ~GradientEngine() = default;

  // Computes the gradient, and returns the loss of the batch with the l2 penalty. `needed` is
  // called for each parameter before the device reads it, in each part of the batch. `ready` is
  // called once for each parameter when its gradient is on the host, from the last layer to the
  // first; never before `needed` has been called for all. `waits` is called
  // while the engine waits for a gradient and has nothing left to queue, until it returns false: it
  // may do a little work, and returns whether it has done any.
  //
  // Stops at the first error of a hook and returns it. After an error for lack of memory
  // (IsOutOfMemory, also from a hook), the device can be used again, and its queue is empty.
  //
  // Errors:
  //   ResourceExhausted  there is not enough memory
  //   InvalidArgument    the rows' weights, by which the loss is divided, have no positive sum
  //   others             those of the reader and of Model::ComputeGradients
  virtual absl::StatusOr<double> Compute(const Batch& batch, Hook needed, Hook ready,
                                         WaitHook waits) = 0;

  // Takes part, without rows, in what the layers of all workers compute together in a step.
  virtual absl::Status JoinWithoutRows() = 0;
  // Whether there are such layers. If so, the other workers wait for this worker's part of each
  // batch, so it cannot leave one out.
  virtual bool joins_batches() const = 0;
  // The number, from 1, of the last step that had a batch; 0: there was none.
  virtual uint64_t last_batch() const = 0;
};

// `run` and `model` outlive the engine. `reader` is null if rows are read without reading ahead. T
// is float or double.
template <typename T>
std::unique_ptr<GradientEngine> MakeGradientEngine(TrainingRun& run, Model<T>& model,
                                                   const Loss& loss,
                                                   std::unique_ptr<BatchReader<T>> reader);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_GRADIENT_ENGINE_H_
