// Trainer: saves the state in checkpoints, and restores it.

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/optim/optimizer.h"
#include "common/status_macros.h"
#include "worker/base/string_list.h"
#include "worker/train/evaluation.h"
#include "worker/train/model_file.h"
#include "worker/train/trainer.h"
#include "worker/train/validation.h"

namespace syncgrads {
namespace {

// How long a checkpoint waits for the one before to be written; otherwise it is not
// taken.
constexpr absl::Duration kMoment = absl::Milliseconds(100);

// The name of the counters in PositionTensors.
constexpr const char* kCountersName = "trainer/counters";

SavedTensor Saved(TensorSpec spec, const void* data) {
  const size_t bytes = spec.bytes();
  return {std::move(spec), std::string(static_cast<const char*>(data), bytes)};
}

// Returns the tensor that stacks all workers' values of a layer state, by rank. Each
// worker has its own layer states.
TensorSpec StackedSpec(const TensorSpec& state, uint32_t workers) {
  TensorSpec spec = state;
  spec.name = absl::StrCat("states/", state.name);
  spec.shape.insert(spec.shape.begin(), workers);
  return spec;
}

// A parameter whose optimizer runs on the servers: its tensor in the group, and its
// slots' tensors in a snapshot.
struct Slotted {
  TensorId tensor;
  std::vector<TensorSpec> slots;
};

// Reads the optimizer's state that the servers hold, and adds it to a snapshot. Runs on
// the thread of the CheckpointWriter.
absl::Status AddOptimizer(const std::vector<Slotted>& parameters, OptimizerSnapshot& held,
                          Snapshot& snapshot) {
  SYNCGRADS_ASSIGN_OR_RETURN(const OptimizerState state, held.Read());
  std::vector<int64_t> counters = {static_cast<int64_t>(snapshot.manifest.step)};
  for (const Slotted& parameter : parameters) {
    const OptimizerState::OfTensor& tensor = state.tensors[ToNumber(parameter.tensor)];
    counters.push_back(static_cast<int64_t>(tensor.updates));
    for (size_t slot = 0; slot < tensor.slots.size(); ++slot) {
      snapshot.training.push_back(Saved(parameter.slots[slot], tensor.slots[slot].data()));
    }
  }
  for (SavedTensor& tensor : snapshot.training) {
    if (tensor.spec.name == kCountersName) tensor = Saved(tensor.spec, counters.data());
  }
  return absl::OkStatus();
}

}  // namespace

template <typename T>
TensorSpec Trainer<T>::SlotSpec(size_t i, int slot) const {
  TensorSpec spec = model_->parameters()[i]->spec();
  spec.name = absl::StrCat("optimizer/", slot, "/", spec.name);
  return spec;
}

template <typename T>
int Trainer<T>::ServerSlots() const {
  return SlotCount(std::get<Optimizer>(group_->spec().rule));
}

template <typename T>
absl::Status Trainer<T>::OfferCheckpoint() {
  if (!due_tensor_.has_value()) return absl::OkStatus();
  checkpoint_requested_ = team_.TakeCheckpointRequest() || checkpoint_requested_;
  const uint64_t step = steps_ + (compresses_ ? 2 : 1);
  const bool asked = checkpoint_requested_ && !options_.checkpoints->busy();
  if (!asked && !schedule_->IsDue(step, options_.clock->Now())) {
    return group_->Skip(*due_tensor_, due_value_);
  }
  return group_->Push(*due_tensor_, due_value_, sizeof(*due_value_), due_value_);
}

template <typename T>
bool Trainer<T>::TakesCheckpoint(bool due) {
  if (!compresses_) return due;
  // Restarts the schedule now, so that the announced checkpoint is not requested again.
  if (due) NoteCheckpoint();
  return std::exchange(checkpoint_follows_, due);
}

template <typename T>
void Trainer<T>::NoteCheckpoint() {
  schedule_->Taken(options_.clock->Now());
  team_.TakeCheckpointRequest();
  checkpoint_requested_ = false;
}

template <typename T>
absl::Status Trainer<T>::TakeCheckpoint(const StepOutcome& outcome) {
  const bool scheduled = schedule_->IsDue(steps_, options_.clock->Now());
  NoteCheckpoint();
  kept_step_ = steps_;
  kept_contributors_ = outcome.contributors.size();
  kept_at_ = options_.clock->Now();
  SYNCGRADS_RETURN_IF_ERROR(FetchState());
  // All workers take part in both collectives, whichever of them writes.
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> states, GatherStates());
  const std::string own = OwnStates();
  if (!states.empty()) UseMeanStates(states);
  const bool writes = outcome.members.front() == team_.name();
  SYNCGRADS_ASSIGN_OR_RETURN(const std::optional<Evaluation> evaluation,
                             EvaluateForCheckpoint(writes));
  const absl::Status begun =
      writes ? BeginCheckpoint(outcome, scheduled, states, evaluation) : absl::OkStatus();
  if (!states.empty()) SYNCGRADS_RETURN_IF_ERROR(UseStates(own));
  return begun;
}

template <typename T>
absl::Status Trainer<T>::BeginCheckpoint(const StepOutcome& outcome, bool scheduled,
                                         const std::vector<std::string>& states,
                                         const std::optional<Evaluation>& evaluation) {
  CheckpointWriter& writer = *options_.checkpoints;
  const absl::Status free = writer.Finish(is_last_ ? options_.step_timeout : kMoment);
  if (!free.ok()) {
    // A checkpoint that was requested is taken after the other has been written. The
    // request reaches workers at different steps, so it may be repeated.
    checkpoint_requested_ = !is_last_ && !scheduled;
    if (checkpoint_requested_) return absl::OkStatus();
    Report({steps_, absl::UnavailableError("the previous one is still being written")});
    return absl::OkStatus();
  }
  // The servers must hold the optimizer's state before anything of the next step is
  // pushed.
  std::shared_ptr<OptimizerSnapshot> held;
  absl::Status begun;
  if (optimizes_on_servers()) {
    absl::StatusOr<std::unique_ptr<OptimizerSnapshot>> answered =
        group_->SnapshotOptimizer(options_.step_timeout);
    begun = answered.status();
    if (begun.ok()) held = *std::move(answered);
  }
  if (begun.ok()) {
    Snapshot snapshot = TakeSnapshot(states);
    snapshot.manifest.workers = static_cast<uint32_t>(outcome.members.size());
    if (evaluation.has_value()) {
      const Scores scores =
          job_.has_validation() ? ValidationScores(*evaluation) : ScoresOf(*evaluation);
      snapshot.manifest.evaluation.insert(scores.begin(), scores.end());
      snapshot.manifest.score =
          ScoreOf(job_.checkpoint().best() == v1::Checkpoint::ACCURACY, *evaluation);
    }
    std::function<absl::Status(Snapshot&)> complete;
    if (held != nullptr) {
      // The writer may call this after the trainer has been destroyed, so it owns what it
      // uses.
      std::vector<Slotted> parameters;
      for (size_t i = 0; i < tensors_.size(); ++i) {
        Slotted& parameter = parameters.emplace_back();
        parameter.tensor = tensors_[i];
        for (int slot = 0; slot < ServerSlots(); ++slot) {
          parameter.slots.push_back(SlotSpec(i, slot));
        }
      }
      complete = [parameters = std::move(parameters), held](Snapshot& incomplete) {
        return AddOptimizer(parameters, *held, incomplete);
      };
    }
    begun = writer.Begin(std::move(snapshot), std::move(complete));
  }
  if (!begun.ok()) Report({steps_, begun});
  return absl::OkStatus();
}

template <typename T>
absl::Status Trainer<T>::KeepLastStep() {
  if (!due_tensor_.has_value() || rounds_ == 0 || kept_step_ == steps_) return absl::OkStatus();
  is_last_ = true;
  SYNCGRADS_ASSIGN_OR_RETURN(const StepOutcome outcome, group_->LastStep(options_.step_timeout));
  return TakeCheckpoint(outcome);
}

template <typename T>
absl::StatusOr<std::optional<Evaluation>> Trainer<T>::EvaluateForCheckpoint(bool writes) {
  if (job_.checkpoint().best() == v1::Checkpoint::NONE) return std::optional<Evaluation>();
  if (job_.has_validation()) {
    return record_.last_step() == steps_ ? validation_ : std::optional<Evaluation>();
  }
  SoleWorker alone;
  const bool elastic = job_.has_elastic();
  // Every worker of an elastic job has all rows, so the worker that writes evaluates
  // alone.
  if (elastic && !writes) return std::optional<Evaluation>();
  const std::vector<RowId> rows =
      RowsOf(data_.data, job_.data().validation_every(), /*held_out=*/true);
  EvaluationSource<T> source =
      MakeEvaluationSource<T>(job_, job_.data(), data_, team_.world_size(), options_.device);
  SYNCGRADS_ASSIGN_OR_RETURN(
      const Evaluation evaluation,
      Evaluate("checkpoint/held_out", *model_, loss_, source, rows,
               elastic ? static_cast<Team&>(alone) : team_, {.damaged = SkippedImages()}));
  if (evaluation.rows > 0) options_.progress->Validated(steps_, ScoresOf(evaluation));
  return std::optional<Evaluation>(evaluation);
}

template <typename T>
Snapshot Trainer<T>::TakeSnapshot(const std::vector<std::string>& states) {
  Snapshot snapshot;
  Manifest& manifest = snapshot.manifest;
  manifest.job = job_.name();
  manifest.step = steps_;
  manifest.dtype = v1::DType_Name(job_.dtype());
  manifest.place = v1::OptimizerPlacement_Name(job_.optimizer_placement());
  manifest.optimizer = OptimizerName(job_.optimizer());
  manifest.seed = job_.seed();
  manifest.workers = team_.world_size();
  manifest.shards = data_.data.total_shards;
  manifest.learning_rate_factor = job_factor_;
  manifest.data = batches_->HistoryAfter(steps_);
  manifest.written_at =
      absl::FormatTime(absl::RFC3339_sec, options_.clock->Now(), absl::UTCTimeZone());
  snapshot.model_metadata = ModelMetadata(data_.classes, job_.name());
  for (const Parameter<T>* tensor : TensorsOf(*model_)) {
    snapshot.model.push_back(Saved(tensor->spec(), tensor->values.data()));
  }
  for (const NamedTensor& tensor : PositionTensors()) {
    snapshot.training.push_back(Saved(tensor.spec, tensor.data));
  }
  for (const NamedTensor& tensor : SlotTensors()) {
    snapshot.training.push_back(Saved(tensor.spec, tensor.data));
  }
  size_t begin = 0;  // offset in the states of each worker
  for (const Parameter<T>* state : model_->states()) {
    if (states.empty()) break;
    SavedTensor& stacked = snapshot.training.emplace_back();
    stacked.spec = StackedSpec(state->spec(), static_cast<uint32_t>(states.size()));
    for (const std::string& of_worker : states) {
      absl::StrAppend(&stacked.bytes, of_worker.substr(begin, state->bytes()));
    }
    begin += state->bytes();
  }
  return snapshot;
}

template <typename T>
absl::StatusOr<OptimizerState> Trainer<T>::OptimizerStateOf(const Snapshot& snapshot) const {
  const int slots = ServerSlots();
  OptimizerState state;
  for (const TensorSpec& spec : group_->spec().tensors) {
    OptimizerState::OfTensor& tensor = state.tensors.emplace_back();
    tensor.slots.assign(static_cast<size_t>(slots), std::vector<std::byte>(spec.bytes()));
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    OptimizerState::OfTensor& tensor = state.tensors[ToNumber(tensors_[i])];
    tensor.updates = static_cast<uint64_t>(counters_[1 + i]);
    for (int slot = 0; slot < slots; ++slot) {
      SYNCGRADS_ASSIGN_OR_RETURN(const absl::string_view bytes, snapshot.Find(SlotSpec(i, slot)));
      std::memcpy(tensor.slots[static_cast<size_t>(slot)].data(), bytes.data(), bytes.size());
    }
  }
  return state;
}

template <typename T>
std::optional<Snapshot> Trainer<T>::KeepState() {
  // With best_of, workers have made different steps alone.
  if (has_parameters_on_servers() || competes()) return std::nullopt;
  // The operation that ran out of memory has not changed the state.
  device_->memory().ForgetExhaustion();
  if (optimizer_ != nullptr) optimizer_->Undo();
  if (!FetchState().ok()) return std::nullopt;
  return TakeSnapshot({});
}

template <typename T>
absl::Status Trainer<T>::Restore(Resumption& from) {
  std::vector<NamedTensor> tensors = PositionTensors();
  for (Parameter<T>* state : model_->states()) {
    tensors.push_back({state->spec(), state->values.data()});
  }
  for (Parameter<T>* parameter : model_->parameters()) {
    tensors.push_back({parameter->spec(), parameter->values.data()});
  }
  OptimizerState on_servers;
  for (NamedTensor& tensor : SlotTensors()) tensors.push_back(std::move(tensor));

  // The number of workers whose layer states the root has.
  uint64_t saved_workers = 0;
  absl::Status loaded;
  if (from.snapshot.has_value()) {
    for (size_t i = 0; i < tensors.size() && loaded.ok(); ++i) {
      const absl::StatusOr<absl::string_view> bytes = from.snapshot->Find(tensors[i].spec);
      // A checkpoint of a job file that had no validation: the record begins here.
      if (absl::IsNotFound(bytes.status()) && tensors[i].data == record_.state().data) continue;
      loaded = bytes.status();
      if (loaded.ok()) std::memcpy(tensors[i].data, bytes->data(), bytes->size());
    }
    if (loaded.ok() && optimizes_on_servers()) {
      absl::StatusOr<OptimizerState> state = OptimizerStateOf(*from.snapshot);
      loaded = state.status();
      if (loaded.ok()) on_servers = *std::move(state);
    }
    if (!model_->states().empty()) {
      const SavedTensor* first =
          from.snapshot->FindNamed(StackedSpec(model_->states().front()->spec(), 0).name);
      if (first != nullptr) saved_workers = static_cast<uint64_t>(first->spec.shape.front());
    }
  }
  job_factor_ = from.manifest.learning_rate_factor;
  if (loaded.ok() && job_factor_ != 1 && team_.rank() == from.root) {
    loaded = team_.SetLearningRateFactor(job_factor_);
  }
  // If the root cannot load the state, the other workers must not wait for its broadcast.
  SYNCGRADS_ASSIGN_OR_RETURN(
      const std::vector<std::string> said,
      team_.Gather("checkpoint/loaded",
                   EncodeStrings({EncodeStatus(loaded), EncodeNumber(saved_workers)})));
  if (from.root >= said.size()) return absl::AbortedError("the worker that has the state has left");
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> of_root,
                             DecodeStrings(said[from.root]));
  SYNCGRADS_RETURN_IF_ERROR(DecodeStatus(of_root[0]));
  saved_workers = DecodeNumber(of_root[1]);

  std::vector<std::string> stacked;  // by layer state
  for (size_t i = 0; saved_workers > 0 && i < model_->states().size(); ++i) {
    stacked.emplace_back(model_->states()[i]->bytes() * saved_workers, '\0');
  }
  for (size_t i = 0; i < stacked.size(); ++i) {
    const TensorSpec spec =
        StackedSpec(model_->states()[i]->spec(), static_cast<uint32_t>(saved_workers));
    if (from.snapshot.has_value()) {
      SYNCGRADS_ASSIGN_OR_RETURN(const absl::string_view bytes, from.snapshot->Find(spec));
      stacked[i] = std::string(bytes);
    }
    tensors.push_back({spec, stacked[i].data()});
  }
  SYNCGRADS_RETURN_IF_ERROR(team_.BroadcastAll("checkpoint/state", tensors, from.root));
  for (size_t i = 0; i < stacked.size(); ++i) {
    Parameter<T>& state = *model_->states()[i];
    const uint64_t source = team_.rank() < saved_workers ? team_.rank() : 0;
    std::memcpy(state.values.data(), stacked[i].data() + source * state.bytes(), state.bytes());
  }
  if (optimizes_on_servers()) {
    SYNCGRADS_RETURN_IF_ERROR(
        group_->Restore(from.root, Values(), on_servers, options_.step_timeout));
  }
  RestoreCounters();
  kept_step_ = steps_;
  batches_->ContinueAfter(steps_);
  from.snapshot.reset();
  return absl::OkStatus();
}

template <typename T>
void Trainer<T>::Report(const CheckpointOutcome& outcome) {
  const bool written = outcome.path.ok();
  if (options_.note) {
    options_.note(written
                      ? absl::StrCat("checkpoint after step ", outcome.step, ": ", *outcome.path)
                      : absl::StrCat("checkpoint not written after step ", outcome.step, ": ",
                                     outcome.path.status().message(), "; training continues"));
  }
  team_.ReportCheckpoint(outcome.step, outcome.path);
  options_.progress->Checkpointed(written);
  if (options_.event_log != nullptr) options_.event_log->Checkpointed(outcome.step, outcome.path);
}

template <typename T>
void Trainer<T>::ReportCheckpoints() {
  if (options_.checkpoints == nullptr) return;
  for (const CheckpointOutcome& outcome : options_.checkpoints->TakeOutcomes()) Report(outcome);
}

template <typename T>
void Trainer<T>::FinishCheckpoints() {
  if (options_.checkpoints == nullptr) return;
  const absl::Status finished = options_.checkpoints->Finish(options_.step_timeout);
  ReportCheckpoints();
  if (!finished.ok() && options_.note) options_.note(std::string(finished.message()));
}

// Instantiates the members that are defined in this file.
#define SYNCGRADS_INSTANTIATE(T)                                                               \
  template TensorSpec Trainer<T>::SlotSpec(size_t, int) const;                                 \
  template int Trainer<T>::ServerSlots() const;                                                \
  template absl::StatusOr<OptimizerState> Trainer<T>::OptimizerStateOf(const Snapshot&) const; \
  template absl::Status Trainer<T>::OfferCheckpoint();                                         \
  template bool Trainer<T>::TakesCheckpoint(bool);                                             \
  template void Trainer<T>::NoteCheckpoint();                                                  \
  template absl::Status Trainer<T>::TakeCheckpoint(const StepOutcome&);                        \
  template absl::Status Trainer<T>::BeginCheckpoint(const StepOutcome&, bool,                  \
                                                    const std::vector<std::string>&,           \
                                                    const std::optional<Evaluation>&);         \
  template absl::Status Trainer<T>::KeepLastStep();                                            \
  template absl::StatusOr<std::optional<Evaluation>> Trainer<T>::EvaluateForCheckpoint(bool);  \
  template Snapshot Trainer<T>::TakeSnapshot(const std::vector<std::string>&);                 \
  template std::optional<Snapshot> Trainer<T>::KeepState();                                    \
  template absl::Status Trainer<T>::Restore(Resumption&);                                      \
  template void Trainer<T>::Report(const CheckpointOutcome&);                                  \
  template void Trainer<T>::ReportCheckpoints();                                               \
  template void Trainer<T>::FinishCheckpoints();
SYNCGRADS_INSTANTIATE(float)
SYNCGRADS_INSTANTIATE(double)
#undef SYNCGRADS_INSTANTIATE

}  // namespace syncgrads
