#include "worker/run/operations.h"

#include <cmath>
#include <functional>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/base/file.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/evaluation/prediction.h"
#include "worker/evaluation/validation.h"
#include "worker/nn/models/build.h"
#include "worker/train/compute.h"
#include "worker/train/model_file.h"
#include "worker/train/resume.h"

namespace syncgrads {
namespace {

// Evaluates the held-out rows of all workers with a trained model; nullopt if the job has none.
absl::StatusOr<std::optional<Evaluation>> EvaluateHeldOut(const v1::JobFile& job, Trainer& trainer,
                                                          const DataSet& data, Team& team) {
  if (job.data().validation_every() == 0) return std::optional<Evaluation>();
  const std::vector<RowId> rows =
      RowsToEvaluate(data, job.data().validation_every(), /*held_out=*/true, team);
  SYNCGRADS_ASSIGN_OR_RETURN(
      const Evaluation evaluation,
      trainer.replica().Evaluate("evaluation/held_out", job.data(), data, rows, team,
                                 {.damaged = trainer.SkippedImages()}));
  return std::optional<Evaluation>(evaluation);
}

// Trains the job's model from one initialisation.
absl::StatusOr<std::unique_ptr<Trainer>> TrainFrom(const Job& job, const DataSet& data, Team& team,
                                                   const TrainerOptions& options) {
  SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                             Trainer::Create(job, data, team, options));
  const absl::Status status = trainer->Train();
  if (status.ok()) return trainer;
  // With random restarts, the state of one initialisation is not enough to resume the run.
  if (options.kept != nullptr && job.file.random_restarts() == 0)
    *options.kept = trainer->KeepState();
  return status;
}

// Trains from each of the job's initialisations, and returns the trainer whose model has
// the least loss on the held-out rows. In a tie the first one wins; NaN counts as
// infinite. All workers choose the same one, because the loss is over the rows of all.
absl::StatusOr<std::unique_ptr<Trainer>> TrainBest(const Job& job, const DataSet& data, Team& team,
                                                   TrainerOptions options,
                                                   std::optional<uint32_t>& best) {
  const uint32_t random_restarts = job.file.random_restarts();
  if (random_restarts == 0) return TrainFrom(job, data, team, options);
  const auto note = [&](const std::string& line) {
    if (team.is_master() && options.note) options.note(line);
  };
  std::unique_ptr<Trainer> kept;
  double least = 0;
  for (uint32_t i = 0; i <= random_restarts; ++i) {
    options.initialisation = i;
    const std::string name = absl::StrCat("initialisation ", i + 1, " of ", random_restarts + 1);
    note(name);
    SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                               TrainFrom(job, data, team, options));
    SYNCGRADS_ASSIGN_OR_RETURN(const std::optional<Evaluation> held_out,
                               EvaluateHeldOut(job.file, *trainer, data, team));
    note(absl::StrCat(name, ": held out: ", ToString(*held_out)));
    const double loss = std::isnan(held_out->loss) ? HUGE_VAL : held_out->loss;
    if (kept != nullptr && !(loss < least)) continue;
    least = loss;
    best = i;
    kept = std::move(trainer);
  }
  return kept;
}

// Evaluates a trained model: sets `trained_on`, `held_out` and `validation`. A job with a
// validation says what it is evaluated on: its training rows, which may be very many, are not.
absl::Status EvaluateTrained(const v1::JobFile& job, Trainer& trainer, const DataSet& data,
                             Team& team, TrainingResult& result) {
  result.validation = trainer.validation();
  if (!job.has_validation()) {
    const std::vector<RowId> rows =
        RowsToEvaluate(data, job.data().validation_every(), /*held_out=*/false, team);
    SYNCGRADS_ASSIGN_OR_RETURN(
        result.trained_on,
        trainer.replica().Evaluate("evaluation/trained_on", job.data(), data, rows, team,
                                   {.damaged = trainer.SkippedImages()}));
  } else if (!job.validation().has_data()) {
    return absl::OkStatus();  // the validation has evaluated the held-out rows
  }
  SYNCGRADS_ASSIGN_OR_RETURN(result.held_out, EvaluateHeldOut(job, trainer, data, team));
  return absl::OkStatus();
}

// Returns an error if this worker read no row because all were left out, and no worker evaluated
// any.
absl::Status CheckAnyWasRead(const DamagedImages& damaged,
                             std::initializer_list<std::optional<Evaluation>> evaluations) {
  if (damaged.count() == 0 || damaged.read() > 0) return absl::OkStatus();
  for (const auto& evaluation : evaluations) {
    if (evaluation.has_value() && evaluation->rows > 0) return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat("none of the rows could be read, in ", damaged.count(),
                                          " attempts; an error is: ", *damaged.messages().begin()));
}

// Images of ImageNet are seldom trained on as they are, and a job file for training and validation
// has their mean and deviation twice.
void NoteScale(const v1::DataSpec& data, absl::string_view field,
               const std::function<void(const std::string&)>& note) {
  if (!data.has_imagenet() || data.image().mean_size() > 0 || data.image().std_size() > 0) return;
  note(absl::StrCat(field,
                    ".image has no mean and no std: pixels are from 0 to 1; those of "
                    "ImageNet usually have mean: 0.485 mean: 0.456 mean: 0.406 std: 0.229 "
                    "std: 0.224 std: 0.225"));
}

absl::StatusOr<TrainingResult> Train(const Job& job, const DataSet& data, Team& team,
                                     TrainerOptions options, const std::string& output) {
  if (!output.empty()) SYNCGRADS_RETURN_IF_ERROR(CheckWritable(output));
  if (options.note && team.is_master()) {
    NoteScale(job.file.data(), "data", options.note);
    NoteScale(job.file.validation().data(), "validation.data", options.note);
  }
  std::optional<CheckpointWriter> checkpoints;
  if (job.file.has_checkpoint() && options.checkpoints == nullptr) {
    checkpoints.emplace(CheckpointOptionsOf(job));
    options.checkpoints = &*checkpoints;
  }
  TrainingResult result;
  SYNCGRADS_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                             TrainBest(job, data, team, options, result.initialisation));
  result.steps = trainer->steps();
  result.rounds = trainer->rounds();
  // Before the evaluation, which may fail: it reads all rows, and needs the other workers.
  if (!output.empty()) SYNCGRADS_RETURN_IF_ERROR(trainer->replica().Save(output));
  SYNCGRADS_RETURN_IF_ERROR(EvaluateTrained(job.file, *trainer, data, team, result));
  result.damaged = trainer->damaged();
  result.skipped = trainer->skipped();
  SYNCGRADS_ASSIGN_OR_RETURN(result.replicas, trainer->replica().Compare(team));
  // After all collectives: other workers may have read rows.
  SYNCGRADS_RETURN_IF_ERROR(
      CheckAnyWasRead(result.damaged, {result.trained_on, result.held_out, result.validation}));
  return result;
}

absl::StatusOr<std::optional<Resumption>> ResumptionFor(const Job& job,
                                                        const TrainerOptions& options, Team& team) {
  const auto ignore = [](const std::string&) {};
  std::optional<Snapshot> kept;
  if (options.kept != nullptr) kept = *options.kept;
  return FindResumption(job, options.resume, std::move(kept), team,
                        options.note ? options.note : ignore);
}

// A trained model, and the data to use it on.
template <typename T>
struct Loaded {
  DataSet data;
  std::unique_ptr<Device<T>> device;
  std::unique_ptr<Model<T>> model;
};

enum class Purpose { kEvaluate, kShow, kPredict };

template <typename T>
absl::StatusOr<Loaded<T>> Load(const Job& job, Team& team, const std::string& parameters,
                               const Extensions& extensions, const DeviceChoice& device,
                               Purpose purpose) {
  SYNCGRADS_ASSIGN_OR_RETURN(const Safetensors file, Safetensors::Read(parameters));
  DataSetOptions options;
  options.with_targets = purpose != Purpose::kPredict;
  SYNCGRADS_ASSIGN_OR_RETURN(options.classes, LoadClasses(file));
  // The rows that were held out in training are those of its shards, however many workers evaluate.
  const bool uses_held_out = purpose == Purpose::kEvaluate &&
                             job.file.data().validation_every() > 0 &&
                             !job.file.validation().has_data();
  if (uses_held_out) {
    SYNCGRADS_ASSIGN_OR_RETURN(options.owners, LoadShardCount(file));
  }
  Loaded<T> loaded;
  SYNCGRADS_ASSIGN_OR_RETURN(loaded.data, LoadDataSet(job, options, team));
  if (options.owners > 0 && loaded.data.data.total_shards != options.owners) {
    return absl::InvalidArgumentError(
        absl::StrCat(parameters, " was trained on ", options.owners, " shards, but the data is in ",
                     loaded.data.data.total_shards,
                     ": other rows would be held out; to evaluate all rows only, set "
                     "data.validation_every to 0"));
  }
  SYNCGRADS_ASSIGN_OR_RETURN(loaded.device, MakeDevice<T>(job.file, team.world_size(), device));
  SYNCGRADS_ASSIGN_OR_RETURN(loaded.model, BuildModel<T>(job.file.model(), loaded.data.shape,
                                                         extensions.layers, *loaded.device));
  SYNCGRADS_RETURN_IF_ERROR(LoadModel(file, *loaded.model).status());
  return loaded;
}

template <typename T>
absl::StatusOr<EvaluationResult> EvaluateAs(const Job& job, Team& team,
                                            const std::string& parameters,
                                            const Extensions& extensions,
                                            const DeviceChoice& device) {
  SYNCGRADS_ASSIGN_OR_RETURN(const Loaded<T> loaded, Load<T>(job, team, parameters, extensions,
                                                             device, Purpose::kEvaluate));
  SYNCGRADS_ASSIGN_OR_RETURN(const Loss loss,
                             BuildLoss(job.file.loss(), loaded.model->outputs(), extensions.losses,
                                       TargetsPerRow(job.file.data())));
  EvaluationResult result;
  const auto options_for = [&](const v1::DataSpec& data, std::vector<uint32_t> top) {
    return EvaluationOptions{std::move(top), SkipsDamaged(data) ? &result.damaged : nullptr};
  };
  const uint32_t every = job.file.data().validation_every();
  if (job.file.has_validation()) {
    SYNCGRADS_ASSIGN_OR_RETURN(const std::optional<DataSet> own,
                               LoadValidationData(job, loaded.data, team));
    const DataSet& data = own.has_value() ? *own : loaded.data;
    const v1::DataSpec& spec = ValidationDataOf(job.file);
    RowsInBatches<T> source(job.file, spec, data, team.world_size(), device);
    const std::vector<RowId> rows = RowsToEvaluate(data, own.has_value() ? 0 : every,
                                                   /*held_out=*/!own.has_value(), team);
    SYNCGRADS_ASSIGN_OR_RETURN(result.validation,
                               Evaluate("evaluation/validation", *loaded.model, loss, source, rows,
                                        team, options_for(spec, TopsOf(job.file))));
    SYNCGRADS_RETURN_IF_ERROR(CheckAnyWasRead(result.damaged, {result.validation}));
    return result;
  }
  RowsInBatches<T> source(job.file, job.file.data(), loaded.data, team.world_size(), device);
  const std::vector<RowId> all =
      RowsToEvaluate(loaded.data, /*validation_every=*/0, /*held_out=*/false, team);
  const EvaluationOptions options = options_for(job.file.data(), {});
  SYNCGRADS_ASSIGN_OR_RETURN(
      result.all, Evaluate("evaluation/all", *loaded.model, loss, source, all, team, options));
  if (every != 0) {
    SYNCGRADS_ASSIGN_OR_RETURN(
        result.held_out,
        Evaluate("evaluation/held_out", *loaded.model, loss, source,
                 RowsToEvaluate(loaded.data, every, /*held_out=*/true, team), team, options));
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckAnyWasRead(result.damaged, {result.all, result.held_out}));
  return result;
}

template <typename T>
absl::Status PredictAs(const Job& job, Team& team, const std::string& parameters,
                       const std::string& output, const Extensions& extensions,
                       const DeviceChoice& device) {
  SYNCGRADS_ASSIGN_OR_RETURN(const Loaded<T> loaded,
                             Load<T>(job, team, parameters, extensions, device, Purpose::kPredict));
  SYNCGRADS_ASSIGN_OR_RETURN(const Loss loss,
                             BuildLoss(job.file.loss(), loaded.model->outputs(), extensions.losses,
                                       TargetsPerRow(job.file.data())));
  RowsInBatches<T> source(job.file, job.file.data(), loaded.data, team.world_size(), device);
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string table,
                             Predict(*loaded.model, loss, loaded.data, source, team));
  if (!team.is_master()) return absl::OkStatus();
  return WriteFileAtomically(output, {table});
}

template <typename T>
absl::StatusOr<std::string> ShowAs(const Job& job, Team& team, const std::string& parameters,
                                   const ShowOptions& options, const Extensions& extensions,
                                   const DeviceChoice& device) {
  SYNCGRADS_ASSIGN_OR_RETURN(const Loaded<T> loaded,
                             Load<T>(job, team, parameters, extensions, device, Purpose::kShow));
  SYNCGRADS_ASSIGN_OR_RETURN(const Loss loss,
                             BuildLoss(job.file.loss(), loaded.model->outputs(), extensions.losses,
                                       TargetsPerRow(job.file.data())));
  RowsInBatches<T> source(job.file, job.file.data(), loaded.data, team.world_size(), device);
  return ShowPredictions(*loaded.model, loss, loaded.data, source, options, team);
}

}  // namespace

absl::StatusOr<TrainingResult> RunTraining(const Job& job, Team& team,
                                           const TrainerOptions& options,
                                           const std::string& output) {
  if (job.file.consistency().has_best_of()) {
    SYNCGRADS_ASSIGN_OR_RETURN(const DataSet data,
                               LoadWholeDataSet(job, team.world_size(), team.rank()));
    TrainerOptions of_rank = options;
    of_rank.rank = team.rank();
    of_rank.owners = team.world_size();
    return RunElasticTraining(job, data, team, of_rank, output);
  }
  SYNCGRADS_ASSIGN_OR_RETURN(std::optional<Resumption> resumption,
                             ResumptionFor(job, options, team));
  const Job resumed = resumption.has_value() ? JobFor(job, resumption->manifest) : job;
  TrainerOptions going_on = options;
  if (resumption.has_value()) going_on.resumption = &*resumption;
  SYNCGRADS_ASSIGN_OR_RETURN(const DataSet data, LoadDataSet(resumed, DataSetOptions(), team));
  SYNCGRADS_ASSIGN_OR_RETURN(const std::optional<DataSet> validation,
                             LoadValidationData(resumed, data, team));
  if (validation.has_value()) going_on.validation = &*validation;
  return Train(resumed, data, team, going_on, output);
}

absl::StatusOr<TrainingResult> RunElasticTraining(const Job& job, const DataSet& data, Team& team,
                                                  const TrainerOptions& options,
                                                  const std::string& output) {
  std::optional<Resumption> resumption;
  // A newcomer receives the state of the other workers instead.
  if (!team.is_newcomer()) {
    SYNCGRADS_ASSIGN_OR_RETURN(resumption, ResumptionFor(job, options, team));
  }
  TrainerOptions going_on = options;
  if (resumption.has_value()) going_on.resumption = &*resumption;
  return Train(job, data, team, going_on, output);
}

absl::StatusOr<EvaluationResult> RunEvaluation(const Job& job, Team& team,
                                               const std::string& parameters,
                                               const Extensions& extensions,
                                               const DeviceChoice& device) {
  return job.file.dtype() == v1::F64 ? EvaluateAs<double>(job, team, parameters, extensions, device)
                                     : EvaluateAs<float>(job, team, parameters, extensions, device);
}

absl::StatusOr<std::string> RunShow(const Job& job, Team& team, const std::string& parameters,
                                    const ShowOptions& options, const Extensions& extensions,
                                    const DeviceChoice& device) {
  return job.file.dtype() == v1::F64
             ? ShowAs<double>(job, team, parameters, options, extensions, device)
             : ShowAs<float>(job, team, parameters, options, extensions, device);
}

absl::Status RunPrediction(const Job& job_file, Team& team, const std::string& parameters,
                           const std::string& output, const Extensions& extensions,
                           const DeviceChoice& device) {
  if (team.is_master()) SYNCGRADS_RETURN_IF_ERROR(CheckWritable(output));
  // So that the predictions, in rank order, are those of all rows in the order of the source.
  Job job = job_file;
  job.file.mutable_data()->set_partition(v1::DataSpec::CONTIGUOUS);
  job.file.mutable_data()->set_split(v1::DataSpec::KEEP_REMAINDER);
  return job.file.dtype() == v1::F64
             ? PredictAs<double>(job, team, parameters, output, extensions, device)
             : PredictAs<float>(job, team, parameters, output, extensions, device);
}

}  // namespace syncgrads
