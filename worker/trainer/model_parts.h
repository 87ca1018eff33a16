// Creates the parts of a trainer that depend on the type of the numbers.

#ifndef SYNCGRADS_WORKER_TRAINER_MODEL_PARTS_H_
#define SYNCGRADS_WORKER_TRAINER_MODEL_PARTS_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/job/job_file.h"
#include "worker/team/team.h"
#include "worker/trainer/gradient_engine.h"
#include "worker/trainer/replica.h"
#include "worker/trainer/training_run.h"

namespace syncgrads {

struct ModelParts {
  std::unique_ptr<Replica> replica;
  // Refers to the replica.
  std::unique_ptr<GradientEngine> engine;
};

// Builds the job's model with its initial parameters, the engine that computes its gradients, and
// the reader of its batches. `run` outlives the parts. Errors: those of MakeDevice, BuildModel, or
// BuildLoss.
absl::StatusOr<ModelParts> MakeModelParts(TrainingRun& run);

// Sets what the model takes from the data and from model.init_from, before the workers share their
// initial parameters. A collective of `informed`, which is a SoleWorker if every worker has all of
// the data. Errors: those of Safetensors::Read, of LoadModel, or the team's.
absl::Status PrepareModel(const Job& job, TrainingRun& run, Replica& replica, Team& informed);

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAINER_MODEL_PARTS_H_
