#include "worker/trainer/model_parts.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "worker/base/file.h"
#include "worker/base/random.h"
#include "worker/batches/batch_reader.h"
#include "worker/batches/data_set.h"
#include "worker/batches/feature_statistics.h"
#include "worker/io/safetensors.h"
#include "worker/job/parameter_rules.h"
#include "worker/nn/models/build.h"
#include "worker/train/compute.h"
#include "worker/train/model_file.h"
#include "worker/trainer/model_replica.h"

namespace syncgrads {
namespace {

// Returns the seed of the initial parameters.
uint64_t SeedOf(const v1::JobFile& job, uint32_t initialisation) {
  if (initialisation == 0) return job.seed();
  return RandomStream(job.seed(), {HashBytes("initialisation"), initialisation}).Next();
}

// Freezes the parameters that the job's rules freeze. Returns the factors of the others; empty if
// all are 1.
template <typename T>
absl::StatusOr<std::vector<TensorFactors>> FreezeParameters(const v1::JobFile& job,
                                                            Model<T>& model) {
  std::vector<TensorSpec> specs;
  for (const Parameter<T>* parameter : model.parameters()) specs.push_back(parameter->spec());
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<TensorFactors> all, FactorsOf(job, specs));
  std::vector<bool> frozen;
  std::vector<TensorFactors> factors;
  for (const TensorFactors& one : all) {
    frozen.push_back(one.learning_rate == 0);
    if (!frozen.back()) factors.push_back(one);
  }
  model.Freeze(frozen);
  const bool has_factors = std::any_of(factors.begin(), factors.end(),
                                       [](const auto& one) { return one != TensorFactors(); });
  if (!has_factors) factors.clear();
  return factors;
}

template <typename T>
absl::StatusOr<ModelParts> MakeAs(TrainingRun& run) {
  const v1::JobFile& job = run.job;
  const uint32_t world_size = run.team.world_size();
  const TrainerOptions& options = run.options;
  SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<Device<T>> device,
                             MakeDevice<T>(job, world_size, options.device));
  SYNCGRADS_ASSIGN_OR_RETURN(
      std::unique_ptr<Model<T>> model,
      BuildModel<T>(job.model(), run.data.shape, options.extensions->layers, *device));
  model->Initialise(SeedOf(job, options.initialisation));
  SYNCGRADS_ASSIGN_OR_RETURN(Loss loss,
                             BuildLoss(job.loss(), model->outputs(), options.extensions->losses,
                                       TargetsPerRow(job.data())));
  for (const Parameter<T>* parameter : model->parameters()) {
    run.plan.parameters += static_cast<uint64_t>(parameter->values.size());
  }
  SYNCGRADS_ASSIGN_OR_RETURN(std::vector<TensorFactors> factors, FreezeParameters(job, *model));
  auto replica = std::make_unique<ModelReplica<T>>(run, std::move(device), std::move(model),
                                                   std::move(loss), std::move(factors));
  SYNCGRADS_RETURN_IF_ERROR(replica->CreateAverage());
  ModelParts parts;
  parts.engine =
      MakeGradientEngine<T>(run, replica->model(), replica->loss(),
                            MakeReader<T>(job, job.data(), run.data, world_size, options.device));
  parts.replica = std::move(replica);
  return parts;
}

template <typename T>
absl::Status PrepareAs(const Job& job, TrainingRun& run, Model<T>& model, Team& informed) {
  if (MinMaxScaling<T>* scaling = FindMinMaxScaling(model); scaling != nullptr) {
    SYNCGRADS_ASSIGN_OR_RETURN(FeatureStatistics statistics,
                               FindStatistics(run.job, run.data, run.team.world_size(),
                                              run.options.device, run.skipped_images(), informed));
    if (run.job.model().layers(0).has_standard_scaling()) {
      for (size_t i = 0; i < statistics.mean.size(); ++i) {
        statistics.minimum[i] = statistics.mean[i] - statistics.deviation[i];
        statistics.maximum[i] = statistics.mean[i] + statistics.deviation[i];
      }
    }
    scaling->SetRanges(statistics.minimum, statistics.maximum);
  }
  const v1::ModelSpec& spec = run.job.model();
  if (spec.init_from().empty()) return absl::OkStatus();
  SYNCGRADS_ASSIGN_OR_RETURN(const Safetensors begin,
                             Safetensors::Read(PathFrom(job.directory, spec.init_from())));
  const PartialLoad partial = {{spec.init_skip().begin(), spec.init_skip().end()},
                               spec.init_allow_missing()};
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> left, LoadModel(begin, model, partial));
  if (!left.empty() && run.options.note && run.team.is_master()) {
    run.options.note(
        absl::StrCat("not taken from ", spec.init_from(), ": ", absl::StrJoin(left, ", ")));
  }
  return absl::OkStatus();
}

template <typename T>
Model<T>& ModelOf(Replica& replica) {
  return static_cast<ModelReplica<T>&>(replica).model();
}

}  // namespace

absl::StatusOr<ModelParts> MakeModelParts(TrainingRun& run) {
  return run.job.dtype() == v1::F64 ? MakeAs<double>(run) : MakeAs<float>(run);
}

absl::Status PrepareModel(const Job& job, TrainingRun& run, Replica& replica, Team& informed) {
  return run.job.dtype() == v1::F64 ? PrepareAs(job, run, ModelOf<double>(replica), informed)
                                    : PrepareAs(job, run, ModelOf<float>(replica), informed);
}

}  // namespace syncgrads
