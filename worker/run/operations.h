// The operations of ps-worker on a job file: training, evaluation, prediction.

#ifndef SYNCGRADS_WORKER_RUN_OPERATIONS_H_
#define SYNCGRADS_WORKER_RUN_OPERATIONS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/evaluation/evaluation.h"
#include "worker/evaluation/shown_predictions.h"
#include "worker/job/job_file.h"
#include "worker/team/replicas.h"
#include "worker/team/team.h"
#include "worker/train/extensions.h"
#include "worker/trainer/trainer.h"

namespace syncgrads {

// The result of a training run on one worker.
struct TrainingResult {
  uint64_t steps = 0;
  // Jobs with `random_restarts` only: the initialisation, from 0, with the best model. All other
  // fields are those of its training.
  std::optional<uint32_t> initialisation;
  // How often the workers have synchronised. Equal to `steps` unless a cycle has several
  // local steps.
  uint64_t rounds = 0;
  // Over the rows of all workers: the training rows, without any row if the job has a validation;
  // and the held-out rows, if any, and if they are not those of the validation.
  Evaluation trained_on;
  std::optional<Evaluation> held_out;
  // The validation after the last step, if the job has any.
  std::optional<Evaluation> validation;
  ReplicaCheck replicas;
  // This worker's images that could not be read, and its skipped steps.
  DamagedImages damaged;
  SkippedSteps skipped;
};

// Trains the job's model, writes it to the file `output` unless that is empty, evaluates it, and
// compares the workers' replicas. A collective.
//
// Errors: those of CheckWritable, before the first step; those of LoadDataSet, FindResumption,
// Trainer, SaveModel, or the team; DataLoss if images are skipped, and none could be read.
absl::StatusOr<TrainingResult> RunTraining(const Job& job, Team& team,
                                           const TrainerOptions& options,
                                           const std::string& output);

// Trains like RunTraining, with all of the job's data: for an elastic job, whose worker
// reads `data` before it joins so that the others do not wait for it, and for a job with
// best_of. options.validation is set if the job has validation.data. The workers divide the rows of
// the evaluation among themselves.
absl::StatusOr<TrainingResult> RunElasticTraining(const Job& job, const DataSet& data, Team& team,
                                                  const TrainerOptions& options,
                                                  const std::string& output);

// The result of an evaluation on one worker.
struct EvaluationResult {
  // If the job has a validation: the evaluation on its rows; the other fields are not set.
  std::optional<Evaluation> validation;
  std::optional<Evaluation> all;
  // The evaluation on the held-out rows, if the job has any.
  std::optional<Evaluation> held_out;
  // This worker's images that could not be read.
  DamagedImages damaged;
};

// Evaluates the model in the file `parameters`: on the rows of the job's validation, or if it has
// none, on the job's data. A collective. Errors: those of LoadDataSet, LoadValidationData,
// Safetensors::Read, LoadModel, or the team; DataLoss if images are skipped, and none could be
// read.
absl::StatusOr<EvaluationResult> RunEvaluation(const Job& job, Team& team,
                                               const std::string& parameters,
                                               const Extensions& extensions = NoExtensions(),
                                               const DeviceChoice& device = DeviceChoice());

// Returns the text of ShowPredictions for the model in the file `parameters`. A
// collective. Errors: those of RunEvaluation, or of ShowPredictions.
absl::StatusOr<std::string> RunShow(const Job& job, Team& team, const std::string& parameters,
                                    const ShowOptions& options,
                                    const Extensions& extensions = NoExtensions(),
                                    const DeviceChoice& device = DeviceChoice());

// Predicts every row of the job's data with the model in the file `parameters`; rank 0
// writes the table of Predict to the file `output`. A collective. Errors: on rank 0 those of
// CheckWritable, before anything is read; those of RunEvaluation, of Predict, or of
// WriteFileAtomically.
absl::Status RunPrediction(const Job& job, Team& team, const std::string& parameters,
                           const std::string& output, const Extensions& extensions = NoExtensions(),
                           const DeviceChoice& device = DeviceChoice());

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_RUN_OPERATIONS_H_
