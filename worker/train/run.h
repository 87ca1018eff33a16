// The three things that ps-worker does with a job file.

#ifndef SYNCGRADS_WORKER_TRAIN_RUN_H_
#define SYNCGRADS_WORKER_TRAIN_RUN_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/job/job_file.h"
#include "worker/train/evaluation.h"
#include "worker/train/extensions.h"
#include "worker/train/replicas.h"
#include "worker/train/team.h"
#include "worker/train/trainer.h"

namespace syncgrads {

struct TrainingResult {
  uint64_t steps = 0;
  // Of a job with restarts: which one, from 0, was the best. All else is of that.
  std::optional<uint32_t> initialisation;
  // How often the workers have synchronised: `steps`, but for local steps.
  uint64_t rounds = 0;
  // Over the rows of all workers: those trained on, and those held out, if any.
  Evaluation trained_on;
  std::optional<Evaluation> held_out;
  ReplicaCheck replicas;
  // Of this worker.
  DamagedImages damaged;
  SkippedSteps skipped;
};

// Trains the job's model, evaluates it, compares the workers' replicas, and, if
// `output` is not empty, writes the model there. A collective.
//
// Errors: as LoadDataSet, Trainer, the team, or SaveModel.
absl::StatusOr<TrainingResult> RunTraining(const Job& job, Team& team,
                                           const TrainerOptions& options,
                                           const std::string& output);

// The same of an elastic job, with all of its data. A worker reads that before it
// joins, so that the others do not wait for it. The evaluation is over all rows,
// which the workers that are there share out.
absl::StatusOr<TrainingResult> RunElasticTraining(const Job& job, const DataSet& data, Team& team,
                                                  const TrainerOptions& options,
                                                  const std::string& output);

struct EvaluationResult {
  Evaluation all;
  // Of the rows that the job holds out, if it holds out any.
  std::optional<Evaluation> held_out;
};

// Evaluates the model in the file `parameters` on the job's data. A collective.
// Errors: as LoadDataSet, Safetensors::Read, LoadModel, or the team.
absl::StatusOr<EvaluationResult> RunEvaluation(const Job& job, Team& team,
                                               const std::string& parameters,
                                               const Extensions& extensions = NoExtensions(),
                                               const DeviceChoice& device = DeviceChoice());

// As ShowPredictions, of the model in the file `parameters`. A collective. Errors: as
// RunEvaluation, or as ShowPredictions.
absl::StatusOr<std::string> RunShow(const Job& job, Team& team, const std::string& parameters,
                                    size_t count, const Extensions& extensions = NoExtensions(),
                                    const DeviceChoice& device = DeviceChoice());

// Writes the predictions of the model in the file `parameters` for every row of
// the job's data to the file `output`; rank 0 does. See Predict. A collective.
// Errors: as RunEvaluation, or as WriteFileAtomically.
absl::Status RunPrediction(const Job& job, Team& team, const std::string& parameters,
                           const std::string& output, const Extensions& extensions = NoExtensions(),
                           const DeviceChoice& device = DeviceChoice());

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_RUN_H_
