// Steps that a worker makes without the others.

#ifndef SYNCGRADS_WORKER_TRAINER_SOLO_STEPS_H_
#define SYNCGRADS_WORKER_TRAINER_SOLO_STEPS_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/loader.h"
#include "worker/trainer/checkpoint_keeper.h"
#include "worker/trainer/gradient_engine.h"
#include "worker/trainer/replica.h"
#include "worker/trainer/training_run.h"

namespace syncgrads {

// Computes this worker's gradient and applies it to this worker's parameters. Not thread-safe.
class SoloSteps {
 public:
  // Whether a gradient that is not finite is refused. Without an outlier factor only a server would
  // notice it, and no server sees the gradient of such a step.
  enum class NonFinite { kRefused, kApplied };

  // The arguments outlive the object. The replica has an optimizer.
  SoloSteps(TrainingRun& run, Replica& replica, GradientEngine& engine, CheckpointKeeper& keeper,
            NonFinite non_finite)
      : run_(run), replica_(replica), engine_(engine), keeper_(keeper), non_finite_(non_finite) {}

  // Makes `count` steps with this worker's next rows, fewer if these are used up. Adds to `rows`
  // the rows whose gradient was applied.
  //
  // Errors:
  //   Cancelled  this worker has been asked to stop
  //   others     those of GradientEngine::Compute, of StepGuard, or of the device
  absl::Status Make(size_t count, std::vector<RowId>& rows);

  // Returns CANCELLED if this worker has been asked to stop.
  absl::Status CheckStop() { return run_.stop_is_requested() ? keeper_.Stop() : absl::OkStatus(); }

 private:
  absl::Status MakeOne(std::vector<RowId>& rows);
  // Returns the loss; nullopt if there was not enough memory.
  absl::StatusOr<std::optional<double>> Compute(const std::vector<RowId>& batch);
  // Applies the gradient. Returns false, without applying it, if the gradient is unusable.
  absl::StatusOr<bool> Apply();

  TrainingRun& run_;
  Replica& replica_;
  GradientEngine& engine_;
  CheckpointKeeper& keeper_;
  const NonFinite non_finite_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_SOLO_STEPS_H_
