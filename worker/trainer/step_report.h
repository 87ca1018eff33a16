// Reports a step that has been made.

#ifndef SYNCGRADS_WORKER_TRAINER_STEP_REPORT_H_
#define SYNCGRADS_WORKER_TRAINER_STEP_REPORT_H_

#include <cstddef>
#include <optional>

#include "absl/status/status.h"
#include "worker/trainer/replica.h"
#include "worker/trainer/training_run.h"

namespace syncgrads {

// Reports step run.steps to the run's progress, and calls the program's callbacks. `rows` is the
// size of this worker's batch, and `loss` its loss. Errors: those of the callbacks.
absl::Status ReportStep(TrainingRun& run, Replica& replica, size_t rows,
                        std::optional<double> loss);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_STEP_REPORT_H_
