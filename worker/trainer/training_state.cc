#include "worker/trainer/training_state.h"

#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/status_macros.h"
#include "worker/base/string_list.h"
#include "worker/train/model_file.h"
#include "worker/train/parameter_average.h"
#include "worker/trainer/server_optimizer.h"

namespace syncgrads {
namespace {

// More workers than any job has.
constexpr uint64_t kMostSavedWorkers = uint64_t{1} << 20;

// Returns the tensor that stacks all workers' values of a layer state, by rank. Each
// worker has its own layer states.
TensorSpec StackedSpec(const TensorSpec& state, uint32_t workers) {
  TensorSpec spec = state;
  spec.name = absl::StrCat("states/", state.name);
  spec.shape.insert(spec.shape.begin(), workers);
  return spec;
}

void Append(absl::Span<const NamedTensor> more, std::vector<NamedTensor>& tensors) {
  tensors.insert(tensors.end(), more.begin(), more.end());
}

// Returns the status and the number of the worker that has the state, which the root sends to all.
absl::StatusOr<uint64_t> ShareLoaded(const absl::Status& loaded, uint64_t number, uint32_t root,
                                     Team& team) {
  SYNCGRADS_ASSIGN_OR_RETURN(
      const std::vector<std::string> sent,
      team.Gather("checkpoint/loaded",
                  EncodeStrings({EncodeStatus(loaded), EncodeNumber(number)})));
  if (root >= sent.size()) return absl::AbortedError("the worker that has the state has left");
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> of_root, DecodeStrings(sent[root]));
  if (of_root.size() != 2 || of_root[1].size() != sizeof(uint64_t)) {
    return absl::DataLossError("malformed state from another worker");
  }
  SYNCGRADS_RETURN_IF_ERROR(DecodeStatus(of_root[0]));
  return DecodeNumber(of_root[1]);
}

}  // namespace

TrainingState::TrainingState(TrainingRun& run, Replica& replica, Validator& validator)
    : run_(run),
      replica_(replica),
      validator_(validator),
      counters_(1 + replica.parameters().size()) {}

NamedTensor TrainingState::CountersTensor() {
  return {{std::string(kCountersName), DType::kI64, {static_cast<int64_t>(counters_.size())}},
          counters_.data()};
}

std::vector<NamedTensor> TrainingState::Position() {
  std::vector<NamedTensor> state = run_.batches->state();
  state.push_back(CountersTensor());
  if (const std::optional<NamedTensor> record = validator_.state(); record.has_value()) {
    state.push_back(*record);
  }
  return state;
}

std::vector<NamedTensor> TrainingState::ForNewcomers() {
  std::vector<NamedTensor> state = Position();
  Append(replica_.Values(), state);
  Append(replica_.frozen(), state);
  Append(replica_.slots(), state);
  Append(replica_.averages(), state);
  if (run_.job.consistency().has_local_steps()) {
    state.push_back({{"trainer/learning_rate_factor", DType::kF64, {}}, &run_.rate.of_job});
  }
  return state;
}

std::vector<NamedTensor> TrainingState::WithoutPosition() {
  std::vector<NamedTensor> state = {CountersTensor()};
  Append(replica_.Values(), state);
  Append(replica_.slots(), state);
  Append(replica_.states(), state);
  return state;
}

void TrainingState::SaveCounters() {
  counters_[0] = static_cast<int64_t>(run_.steps);
  if (!replica_.has_optimizer()) return;
  for (size_t i = 1; i < counters_.size(); ++i) {
    counters_[i] = static_cast<int64_t>(replica_.updates(i - 1));
  }
}

void TrainingState::RestoreCounters() {
  run_.steps = static_cast<uint64_t>(counters_[0]);
  RestoreUpdates();
}

void TrainingState::RestoreUpdates() {
  for (size_t i = 1; i < counters_.size(); ++i) {
    replica_.set_updates(i - 1, static_cast<uint64_t>(counters_[i]));
  }
}

Snapshot TrainingState::TakeSnapshot(const std::vector<std::string>& states) {
  const v1::JobFile& job = run_.job;
  Snapshot snapshot;
  Manifest& manifest = snapshot.manifest;
  manifest.job = job.name();
  manifest.step = run_.steps;
  manifest.dtype = v1::DType_Name(job.dtype());
  manifest.place = v1::OptimizerPlacement_Name(job.optimizer_placement());
  manifest.optimizer = OptimizerName(job.optimizer());
  manifest.seed = job.seed();
  manifest.workers = run_.team.world_size();
  manifest.shards = run_.data.data.total_shards;
  manifest.partition = v1::DataSpec::Partition_Name(job.data().partition());
  manifest.learning_rate_factor = run_.rate.of_job;
  manifest.data = run_.batches->HistoryAfter(run_.steps);
  manifest.best = v1::Checkpoint::Best_Name(job.checkpoint().best());
  manifest.stopping_metric = v1::EarlyStopping::Metric_Name(job.early_stopping().metric());
  manifest.written_at =
      absl::FormatTime(absl::RFC3339_sec, run_.options.clock->Now(), absl::UTCTimeZone());
  snapshot.model_metadata = ModelMetadata(run_.data.classes, manifest.shards, job.name());
  for (const NamedTensor& tensor : replica_.states()) {
    snapshot.model.push_back(CopyOf(tensor.spec, tensor.data));
  }
  for (const NamedTensor& tensor : replica_.frozen()) {
    snapshot.model.push_back(CopyOf(tensor.spec, tensor.data));
  }
  for (const NamedTensor& tensor : replica_.Values()) {
    snapshot.model.push_back(CopyOf(tensor.spec, tensor.data));
  }
  for (const NamedTensor& tensor : Position()) {
    snapshot.training.push_back(CopyOf(tensor.spec, tensor.data));
  }
  if (job.ema().model() == v1::MovingAverage::AVERAGE) {
    UseAverages(replica_.averages(), snapshot);
  } else {
    for (const NamedTensor& tensor : replica_.averages()) {
      snapshot.training.push_back(CopyOf(tensor.spec, tensor.data));
    }
  }
  for (const NamedTensor& tensor : replica_.slots()) {
    snapshot.training.push_back(CopyOf(tensor.spec, tensor.data));
  }
  size_t offset = 0;  // in the states of each worker
  for (const NamedTensor& state : replica_.states()) {
    if (states.empty()) break;
    const size_t bytes = state.spec.bytes();
    SavedTensor& stacked = snapshot.training.emplace_back();
    stacked.spec = StackedSpec(state.spec, static_cast<uint32_t>(states.size()));
    for (const std::string& of_worker : states) {
      absl::StrAppend(&stacked.bytes, of_worker.substr(offset, bytes));
    }
    offset += bytes;
  }
  return snapshot;
}

absl::Status TrainingState::Load(const Snapshot& snapshot, absl::Span<const NamedTensor> tensors) {
  const std::optional<NamedTensor> record = validator_.state();
  for (const NamedTensor& tensor : tensors) {
    const absl::StatusOr<absl::string_view> bytes = snapshot.Find(tensor.spec);
    // A checkpoint of a job file that had no validation: the record begins here.
    const bool is_record = record.has_value() && record->data == tensor.data;
    if (is_record && absl::IsNotFound(bytes.status())) continue;
    SYNCGRADS_RETURN_IF_ERROR(bytes.status());
    std::memcpy(tensor.data, bytes->data(), bytes->size());
  }
  return absl::OkStatus();
}

absl::Status TrainingState::Restore(Resumption& from, TrainingGroup& group) {
  std::vector<NamedTensor> tensors = Position();
  Append(replica_.states(), tensors);
  Append(replica_.frozen(), tensors);
  Append(replica_.Values(), tensors);
  Append(replica_.slots(), tensors);
  Append(replica_.averages(), tensors);
  // What only the root has: the number of workers whose layer states are in its snapshot, and the
  // state for the servers.
  uint64_t saved_workers = 0;
  OptimizerState on_servers;
  absl::Status loaded;
  if (from.snapshot.has_value()) {
    SeparateAverages(replica_.averages(), *from.snapshot);
    loaded = Load(*from.snapshot, tensors);
    if (loaded.ok() && run_.optimizes_on_servers()) {
      absl::StatusOr<OptimizerState> state = ServerOptimizerOf(
          *from.snapshot, replica_, group, absl::MakeConstSpan(counters_).subspan(1));
      loaded = state.status();
      if (loaded.ok()) on_servers = *std::move(state);
    }
    if (!replica_.states().empty()) {
      const SavedTensor* first =
          from.snapshot->FindNamed(StackedSpec(replica_.states().front().spec, 0).name);
      if (first != nullptr) saved_workers = static_cast<uint64_t>(first->spec.shape.front());
    }
  }
  const double factor = from.manifest.learning_rate_factor;
  run_.rate.of_job = factor;
  if (loaded.ok() && factor != 1 && run_.team.rank() == from.root) {
    loaded = run_.team.SetLearningRateFactor(factor);
  }
  // If the root cannot load the state, the other workers must not wait for its broadcast.
  SYNCGRADS_ASSIGN_OR_RETURN(saved_workers,
                             ShareLoaded(loaded, saved_workers, from.root, run_.team));
  if (saved_workers > kMostSavedWorkers) {
    return absl::DataLossError(absl::StrCat("another worker has the layer states of ",
                                            saved_workers, " workers, must be at most ",
                                            kMostSavedWorkers));
  }
  SYNCGRADS_RETURN_IF_ERROR(BroadcastFrom(from, saved_workers, std::move(tensors)));
  if (run_.optimizes_on_servers()) {
    SYNCGRADS_RETURN_IF_ERROR(
        group.group().Restore(from.root, group.Values(), on_servers, run_.options.step_timeout));
  }
  RestoreCounters();
  validator_.NoteRestored(from.manifest);
  run_.batches->ContinueAfter(run_.steps);
  from.snapshot.reset();
  return absl::OkStatus();
}

absl::Status TrainingState::BroadcastFrom(const Resumption& from, uint64_t saved_workers,
                                          std::vector<NamedTensor> tensors) {
  std::vector<std::string> stacked;  // by layer state
  for (size_t i = 0; saved_workers > 0 && i < replica_.states().size(); ++i) {
    const TensorSpec& state = replica_.states()[i].spec;
    stacked.emplace_back(state.bytes() * saved_workers, '\0');
  }
  for (size_t i = 0; i < stacked.size(); ++i) {
    const TensorSpec spec =
        StackedSpec(replica_.states()[i].spec, static_cast<uint32_t>(saved_workers));
    if (from.snapshot.has_value()) {
      SYNCGRADS_ASSIGN_OR_RETURN(const absl::string_view bytes, from.snapshot->Find(spec));
      stacked[i] = std::string(bytes);
    }
    tensors.push_back({spec, stacked[i].data()});
  }
  SYNCGRADS_RETURN_IF_ERROR(run_.team.BroadcastAll("checkpoint/state", tensors, from.root));
  for (size_t i = 0; i < stacked.size(); ++i) {
    const NamedTensor& state = replica_.states()[i];
    const size_t bytes = state.spec.bytes();
    const uint64_t source = run_.team.rank() < saved_workers ? run_.team.rank() : 0;
    std::memcpy(state.data, stacked[i].data() + source * bytes, bytes);
  }
  return absl::OkStatus();
}

}  // namespace syncgrads
