// Trainer: setup before the first step.

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/contract/contract.h"
#include "common/status_macros.h"
#include "common/trace/trace.h"
#include "worker/base/file.h"
#include "worker/base/random.h"
#include "worker/io/safetensors.h"
#include "worker/job/across_workers.h"
#include "worker/job/consistency.h"
#include "worker/nn/build.h"
#include "worker/train/compression.h"
#include "worker/train/compute.h"
#include "worker/train/make_reader.h"
#include "worker/train/model_file.h"
#include "worker/train/trainer.h"

namespace syncgrads {
namespace {

// ParseJobFile has checked the value.
OnBad OnBadOf(v1::OnBad proto) { return FromProto(proto).value_or(OnBad::kReject); }

// No parameter can have this name: parameters' names are paths of layers.
constexpr const char* kDueTensor = "checkpoint due";

StepGuard::Options GuardOptions(const v1::JobFile& job, const TrainerOptions& options) {
  const v1::GradientChecks& checks = job.gradient_checks();
  StepGuard::Options guard;
  guard.outlier_factor = checks.outlier_factor();
  guard.outliers = OnBadOf(checks.outliers());
  guard.non_finite = OnBadOf(checks.non_finite());
  if (checks.history() != 0) guard.history = checks.history();
  if (job.max_skips_in_a_row() != 0) guard.max_in_a_row = job.max_skips_in_a_row();
  guard.warn = options.warn;
  return guard;
}

ShardOwners OwnersOf(const v1::JobFile& job, const Team& team, const TrainerOptions& options) {
  ShardOwners owners;
  owners.rank = options.rank;
  owners.workers = job.has_elastic() ? options.owners : team.world_size();
  if (options.resumption != nullptr) owners.history = options.resumption->manifest.data;
  return owners;
}

// Returns the seed of the initial parameters.
uint64_t SeedOf(const v1::JobFile& job, uint32_t initialisation) {
  if (initialisation == 0) return job.seed();
  return RandomStream(job.seed(), {HashBytes("initialisation"), initialisation}).Next();
}

CheckpointSchedule::Options ScheduleOf(const v1::Checkpoint& checkpoint) {
  return {checkpoint.every_steps(), absl::Seconds(checkpoint.every_s())};
}

}  // namespace

template <typename T>
absl::StatusOr<std::unique_ptr<Trainer<T>>> Trainer<T>::Create(const Job& job, const DataSet& data,
                                                               Team& team,
                                                               const TrainerOptions& options) {
  const v1::JobFile& file = job.file;
  SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<Batches> batches,
                             MakeBatches(file, data, OwnersOf(file, team, options)));
  SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<Device<T>> device,
                             MakeDevice<T>(file, team.world_size(), options.device));
  SYNCGRADS_ASSIGN_OR_RETURN(
      std::unique_ptr<Model<T>> model,
      BuildModel<T>(file.model(), data.shape, options.extensions->layers, *device));
  model->Initialise(SeedOf(file, options.initialisation));
  SYNCGRADS_ASSIGN_OR_RETURN(Loss loss,
                             BuildLoss(file.loss(), model->outputs(), options.extensions->losses));
  std::unique_ptr<Trainer> trainer(new Trainer(file, data, team, options, std::move(loss),
                                               std::move(batches), std::move(device),
                                               std::move(model)));
  trainer->reader_ = MakeReader<T>(file, file.data(), data, team.world_size(), options.device);
  SoleWorker nobody_else;
  Team& informed = ReadsAllData(file) ? nobody_else : team;
  SYNCGRADS_RETURN_IF_ERROR(trainer->MakePlan(informed));
  if (MinMaxScaling<T>* scaling = FindMinMaxScaling(*trainer->model_); scaling != nullptr) {
    SYNCGRADS_ASSIGN_OR_RETURN(const Ranges ranges,
                               FindRanges(data, file.data().validation_every(), informed));
    scaling->SetRanges(ranges.minimum, ranges.maximum);
  }
  if (!file.model().init_from().empty()) {
    SYNCGRADS_ASSIGN_OR_RETURN(
        const Safetensors begin,
        Safetensors::Read(PathFrom(job.directory, file.model().init_from())));
    const PartialLoad partial = {{file.model().init_skip().begin(), file.model().init_skip().end()},
                                 file.model().init_allow_missing()};
    SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> left,
                               LoadModel(begin, *trainer->model_, partial));
    if (!left.empty() && options.note && team.is_master()) {
      options.note(absl::StrCat("not taken from ", file.model().init_from(), ": ",
                                absl::StrJoin(left, ", ")));
    }
  }
  if (LooksAcrossWorkers(file.model())) {
    trainer->exchange_.emplace(team);
    trainer->model_->SetExchange(&*trainer->exchange_);
  }
  SYNCGRADS_RETURN_IF_ERROR(trainer->ShareGradients());
  SYNCGRADS_RETURN_IF_ERROR(trainer->Register());
  trainer->can_overlap_ = trainer->CanOverlap();
  if (options.event_log != nullptr && file.random_restarts() > 0) {
    return absl::InvalidArgumentError(
        "--event_log cannot be combined with random_restarts: an event log covers a single "
        "training run");
  }
  if (options.event_log != nullptr && trainer->competes()) {
    return absl::InvalidArgumentError(
        "--event_log cannot be combined with consistency best_of: its workers do not train "
        "together");
  }
  if (options.resumption != nullptr) {
    SYNCGRADS_RETURN_IF_ERROR(trainer->Restore(*options.resumption));
  } else if (!team.is_newcomer()) {
    SYNCGRADS_RETURN_IF_ERROR(trainer->ShareInitialParameters());
  }
  if (file.has_elastic()) {
    SYNCGRADS_RETURN_IF_ERROR(trainer->ShareState());
  }
  if (trainer->optimizer_ != nullptr) trainer->optimizer_->UploadSlots();
  SYNCGRADS_RETURN_IF_ERROR(trainer->model_->Upload());
  if (options.event_log != nullptr) {
    options.event_log->Begins(trainer->group_->step(), team.is_newcomer());
  }
  return trainer;
}

template <typename T>
Trainer<T>::Trainer(const v1::JobFile& job, const DataSet& data, Team& team,
                    const TrainerOptions& options, Loss loss, std::unique_ptr<Batches> batches,
                    std::unique_ptr<Device<T>> device, std::unique_ptr<Model<T>> model)
    : job_(job),
      data_(data),
      team_(team),
      options_(options),
      loss_(std::move(loss)),
      batches_(std::move(batches)),
      device_(std::move(device)),
      model_(std::move(model)),
      guard_(GuardOptions(job, options)),
      record_(job.early_stopping(), job.checkpoint().best()),
      rate_schedule_(FromProto(job.schedule())) {}

template <typename T>
absl::Status Trainer<T>::MakePlan(Team& team) {
  const uint32_t every = job_.data().validation_every();
  double rows[] = {static_cast<double>(RowsOf(data_.data, every, /*held_out=*/false).size()),
                   static_cast<double>(RowsOf(data_.data, every, /*held_out=*/true).size())};
  // Steps in total, and steps of an epoch.
  double steps[] = {static_cast<double>(batches_->StepsWith(team_.world_size())),
                    job_.has_validation() ? static_cast<double>(StepsPerEpoch()) : 0};
  SYNCGRADS_RETURN_IF_ERROR(
      team.AllReduce("plan/rows", absl::MakeSpan(rows), Reduction::kSum).status());
  SYNCGRADS_RETURN_IF_ERROR(
      team.AllReduce("plan/steps", absl::MakeSpan(steps), Reduction::kMax).status());
  plan_.job = job_.name();
  plan_.workers = team_.world_size();
  plan_.shards = data_.data.total_shards;
  plan_.training_rows = static_cast<uint64_t>(rows[0]);
  plan_.held_out_rows = static_cast<uint64_t>(rows[1]);
  plan_.batch_size = job_.batch_size();
  plan_.steps = static_cast<uint64_t>(steps[0]);
  if (job_.has_validation()) {
    validations_.emplace(job_.validation(), static_cast<uint64_t>(steps[1]));
  }
  for (const Parameter<T>* parameter : model_->parameters()) {
    plan_.parameters += static_cast<uint64_t>(parameter->values.size());
  }
  if (plan_.training_rows == 0) {
    return absl::FailedPreconditionError("no worker has a row to train on");
  }
  return absl::OkStatus();
}

template <typename T>
uint64_t Trainer<T>::StepsPerEpoch() const {
  if (job_.validation().every_steps() != 0) return 0;  // not used
  v1::JobFile one = job_;
  one.set_epochs(1);
  one.clear_steps();
  ShardOwners owners = OwnersOf(job_, team_, options_);
  owners.history.clear();
  uint64_t steps = 0;
  // In a job in which every worker has all rows, each of them counts the steps of all.
  const uint32_t ranks = owners.rank.has_value() ? owners.workers : 1;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (owners.rank.has_value()) owners.rank = rank;
    const absl::StatusOr<std::unique_ptr<Batches>> batches = MakeBatches(one, data_, owners);
    // The errors are those of this worker's own batches, which have been made, or of a rank that
    // has no shard.
    if (batches.ok()) steps = std::max(steps, (*batches)->StepsWith(team_.world_size()));
  }
  return steps;
}

template <typename T>
absl::Status Trainer<T>::ShareGradients() {
  if (competes()) return absl::OkStatus();  // nothing is pushed
  auto memory = GradientMemory<T>::Create(team_, device_->memory(), model_->parameters());
  if (memory.ok()) {
    gradient_memory_ = *std::move(memory);
    due_value_ = gradient_memory_->behind();
    return absl::OkStatus();
  }
  if (!absl::IsResourceExhausted(memory.status())) return memory.status();
  if (options_.note) {
    options_.note(absl::StrCat(
        "gradients are not in shared memory, so servers on this host cannot read them directly: ",
        memory.status().message()));
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status Trainer<T>::Register() {
  SYNCGRADS_ASSIGN_OR_RETURN(const Optimizer optimizer, FromProto(job_.optimizer()));
  base_rate_ = std::visit([](const auto& rule) { return rule.learning_rate; }, optimizer);
  GroupSpec spec;
  spec.name = options_.initialisation == 0
                  ? "model"
                  : absl::StrCat("model/initialisation", options_.initialisation);
  spec.chunk_bytes = job_.chunk_bytes();
  spec.one_epoch = batches_->depends_on_members();
  spec.non_finite = OnBadOf(job_.gradient_checks().non_finite());
  spec.policy = PolicyOf(job_.consistency());
  if (makes_local_steps()) {
    spec.rule = OuterOptimizerOf(job_.consistency().local_steps());
  } else if (optimizes_on_servers()) {
    spec.rule = optimizer;
    spec.clip_norm = job_.clip_norm();
    spec.schedule = rate_schedule_;
  } else {
    spec.rule = Reduction::kAverage;
  }
  spec.members_scale_rate = !optimizes_on_servers();
  for (const Parameter<T>* parameter : model_->parameters()) {
    spec.tensors.push_back(parameter->spec());
  }
  if (job_.has_checkpoint()) {
    // Inserts the tensor before the last parameter. They share a chunk, and the last
    // layer's gradient is sent first.
    spec.tensors.insert(spec.tensors.end() - 1, {kDueTensor, DTypeOf<T>::value, {1}});
    schedule_.emplace(ScheduleOf(job_.checkpoint()), options_.clock->Now());
  }
  SYNCGRADS_ASSIGN_OR_RETURN(spec.compression, CompressionOf(job_, spec.tensors));
  compresses_ = std::any_of(spec.compression.begin(), spec.compression.end(),
                            [](const Compression& one) { return one != Compression(); });
  if (!competes()) {
    SYNCGRADS_ASSIGN_OR_RETURN(group_, team_.Register(spec));
  }
  for (uint32_t t = 0; t < spec.tensors.size(); ++t) {
    if (spec.tensors[t].name == kDueTensor) {
      due_tensor_ = TensorId{t};
    } else {
      tensors_.push_back(TensorId{t});
      push_names_.push_back(InternTraceName(absl::StrCat("push ", spec.tensors[t].name)));
      wait_names_.push_back(InternTraceName(absl::StrCat("wait for ", spec.tensors[t].name)));
    }
  }
  counters_.resize(1 + tensors_.size());
  if (optimizes_on_servers()) return absl::OkStatus();
  SYNCGRADS_ASSIGN_OR_RETURN(optimizer_,
                             ModelOptimizer<T>::Create(optimizer, *device_, model_->parameters()));
  return absl::OkStatus();
}

template <typename T>
absl::Status Trainer<T>::ShareInitialParameters() {
  if (has_parameters_on_servers()) {
    SYNCGRADS_RETURN_IF_ERROR(group_->Broadcast(/*root=*/0, Values(), options_.step_timeout));
    // Under a quorum, the others may have made steps without this worker. Its rows of
    // those steps are not used.
    for (; steps_ + 1 < group_->step(); ++steps_) {
      if (!batches_->ended()) batches_->Advance(StepOutcome());
    }
    return absl::OkStatus();
  }
  std::vector<NamedTensor> tensors;
  for (Parameter<T>* parameter : model_->parameters()) {
    tensors.push_back({parameter->spec(), parameter->values.data()});
  }
  return team_.BroadcastAll("model/initial", tensors, /*root=*/0);
}

template <typename T>
std::vector<void*> Trainer<T>::Results() {
  std::vector<void*> results = Values();
  for (size_t i = 0; i < tensors_.size(); ++i) results[ToNumber(tensors_[i])] = ResultOf(i);
  return results;
}

template <typename T>
std::vector<void*> Trainer<T>::Values() {
  std::vector<void*> values(group_->spec().tensors.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    values[ToNumber(tensors_[i])] = model_->parameters()[i]->values.data();
  }
  if (due_tensor_.has_value()) values[ToNumber(*due_tensor_)] = due_value_;
  return values;
}

template <typename T>
std::vector<NamedTensor> Trainer<T>::PositionTensors() {
  std::vector<NamedTensor> state = batches_->state();
  state.push_back({{"trainer/counters", DType::kI64, {static_cast<int64_t>(counters_.size())}},
                   counters_.data()});
  if (validations_.has_value()) state.push_back(record_.state());
  return state;
}

template <typename T>
std::vector<NamedTensor> Trainer<T>::SlotTensors() {
  std::vector<NamedTensor> state;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    for (int slot = 0; optimizer_ != nullptr && slot < optimizer_->slots(); ++slot) {
      state.push_back({SlotSpec(i, slot), optimizer_->slot(i, slot)});
    }
  }
  return state;
}

template <typename T>
absl::Status Trainer<T>::ShareState() {
  SaveCounters();
  std::vector<NamedTensor> state = PositionTensors();
  for (Parameter<T>* parameter : model_->parameters()) {
    state.push_back({parameter->spec(), parameter->values.data()});
  }
  for (NamedTensor& tensor : SlotTensors()) state.push_back(std::move(tensor));
  if (makes_local_steps()) {
    state.push_back({{"trainer/learning_rate_factor", DType::kF64, {}}, &job_factor_});
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const bool newcomer,
                             group_->RegisterState(state, options_.step_timeout));
  if (!newcomer) return absl::OkStatus();
  RestoreCounters();
  batches_->ContinueAfter(steps_);
  return absl::OkStatus();
}

template <typename T>
void Trainer<T>::SaveCounters() {
  counters_[0] = static_cast<int64_t>(steps_);
  for (size_t i = 0; optimizer_ != nullptr && i < tensors_.size(); ++i) {
    counters_[1 + i] = static_cast<int64_t>(optimizer_->updates(i));
  }
}

template <typename T>
void Trainer<T>::RestoreCounters() {
  steps_ = static_cast<uint64_t>(counters_[0]);
  for (size_t i = 0; optimizer_ != nullptr && i < tensors_.size(); ++i) {
    optimizer_->set_updates(i, static_cast<uint64_t>(counters_[1 + i]));
  }
}

// Instantiates the members that are defined in this file.
template absl::StatusOr<std::unique_ptr<Trainer<float>>> Trainer<float>::Create(
    const Job&, const DataSet&, Team&, const TrainerOptions&);
template Trainer<float>::Trainer(const v1::JobFile&, const DataSet&, Team&, const TrainerOptions&,
                                 Loss, std::unique_ptr<Batches>, std::unique_ptr<Device<float>>,
                                 std::unique_ptr<Model<float>>);
template absl::Status Trainer<float>::MakePlan(Team&);
template uint64_t Trainer<float>::StepsPerEpoch() const;
template absl::Status Trainer<float>::ShareGradients();
template absl::Status Trainer<float>::Register();
template absl::Status Trainer<float>::ShareInitialParameters();
template absl::Status Trainer<float>::ShareState();
template void Trainer<float>::SaveCounters();
template std::vector<void*> Trainer<float>::Results();
template std::vector<void*> Trainer<float>::Values();
template std::vector<NamedTensor> Trainer<float>::PositionTensors();
template std::vector<NamedTensor> Trainer<float>::SlotTensors();
template void Trainer<float>::RestoreCounters();

template absl::StatusOr<std::unique_ptr<Trainer<double>>> Trainer<double>::Create(
    const Job&, const DataSet&, Team&, const TrainerOptions&);
template Trainer<double>::Trainer(const v1::JobFile&, const DataSet&, Team&, const TrainerOptions&,
                                  Loss, std::unique_ptr<Batches>, std::unique_ptr<Device<double>>,
                                  std::unique_ptr<Model<double>>);
template absl::Status Trainer<double>::MakePlan(Team&);
template uint64_t Trainer<double>::StepsPerEpoch() const;
template absl::Status Trainer<double>::ShareGradients();
template absl::Status Trainer<double>::Register();
template absl::Status Trainer<double>::ShareInitialParameters();
template absl::Status Trainer<double>::ShareState();
template void Trainer<double>::SaveCounters();
template std::vector<void*> Trainer<double>::Results();
template std::vector<void*> Trainer<double>::Values();
template std::vector<NamedTensor> Trainer<double>::PositionTensors();
template std::vector<NamedTensor> Trainer<double>::SlotTensors();
template void Trainer<double>::RestoreCounters();

}  // namespace syncgrads
