#include "tests/fault/replay.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/contract/contract.h"
#include "common/group/layout.h"
#include "common/optim/optimizer.h"
#include "common/optim/update.h"
#include "common/status_macros.h"
#include "worker/batches/batch_reader.h"
#include "worker/batches/batches.h"
#include "worker/batches/data_set.h"
#include "worker/job/job_file.h"
#include "worker/nn/layers/custom_layers.h"
#include "worker/nn/loss.h"
#include "worker/nn/models/build.h"
#include "worker/nn/models/model.h"
#include "worker/train/compute.h"
#include "worker/train/model_file.h"

namespace syncgrads::fault {
namespace {

// The gradients of all parameters in one worker's contribution.
using Gradients = std::vector<Matrix<float>>;

// The optimizer state of a range of a parameter. The range is the whole parameter if workers
// optimize, and a span if servers do.
struct Memory {
  std::vector<std::vector<float>> slots;
  uint64_t updates = 0;
};

std::string List(const std::vector<Row>& rows) {
  return absl::StrJoin(rows, " ", [](std::string* out, const Row& row) {
    absl::StrAppend(out, row.first, ":", row.second);
  });
}

absl::StatusOr<uint32_t> RankOf(const std::string& worker) {
  uint32_t rank = 0;
  if (absl::SimpleAtoi(absl::StripPrefix(worker, "worker-"), &rank)) return rank;
  return absl::InvalidArgumentError(absl::StrCat("there is no worker \"", worker, "\""));
}

class Replayed {
 public:
  static absl::StatusOr<std::unique_ptr<Replayed>> Create(Job job, uint32_t workers);

  absl::Status Make(const Step& step, const History& history);
  absl::Status Save(const std::string& output) const {
    return SaveModel(*model_, data_.classes, data_.data.total_shards, job_.file.name(), output);
  }

 private:
  explicit Replayed(Job job)
      : job_(std::move(job)),
        loss_(*BuildLoss(job_.file.loss(), /*outputs=*/1, NoCustomLosses())) {}

  bool dynamic() const { return job_.file.data().mode() == v1::DataSpec::DYNAMIC; }
  bool waits_for_all() const { return !job_.file.consistency().has_quorum(); }
  bool servers_optimize() const { return job_.file.optimizer_placement() == v1::SERVERS; }
  // Returns the rows of `worker` in this step, according to the job's distribution of rows.
  absl::StatusOr<std::vector<RowId>> RowsOf(const std::string& worker, const Step& step);
  std::vector<Row> ToRows(const std::vector<RowId>& ids) const;
  absl::Status CheckRows(const Step& step, const History& history,
                         const std::map<std::string, std::vector<RowId>>& rows);
  absl::Status CountPass(const Step& step, const std::map<std::string, std::vector<RowId>>& rows);
  absl::StatusOr<Gradients> GradientsOf(const std::vector<RowId>& rows, uint64_t step);
  // Returns the workers whose contributions to a chunk were counted, in rank order.
  const std::vector<std::string>& ContributorsOf(const Step& step, size_t chunk) const {
    return step.parts.empty() ? step.contributors : step.parts[chunk];
  }
  void Update(const Step& step, const std::map<std::string, Gradients>& gradients);
  // Updates the elements of tensor `t` from `first` on.
  void Apply(Memory& memory, size_t t, uint64_t first, const std::vector<float>& average);

  const Job job_;
  const Loss loss_;
  DataSet data_;
  std::unique_ptr<Device<float>> device_;
  std::unique_ptr<Model<float>> model_;
  std::optional<Layout> layout_;
  std::vector<TensorId> tensors_;  // the tensor of each parameter in model_->parameters()
  Optimizer optimizer_;
  // With dynamic rows, one object for all workers; otherwise one for each worker.
  std::vector<std::unique_ptr<Batches>> batches_;
  // The key is {0, t} if workers optimize and {chunk, t} if servers do, where t is the position of
  // the parameter.
  std::map<std::pair<size_t, size_t>, Memory> memories_;
  std::set<Row> counted_;  // the rows counted in this pass
  size_t rows_in_pass_ = 0;
};

absl::StatusOr<std::unique_ptr<Replayed>> Replayed::Create(Job job, uint32_t workers) {
  std::unique_ptr<Replayed> replayed(new Replayed(std::move(job)));
  const v1::JobFile& file = replayed->job_.file;
  SYNCGRADS_ASSIGN_OR_RETURN(replayed->data_,
                             LoadWholeDataSet(replayed->job_, workers, /*rank=*/0));
  SYNCGRADS_ASSIGN_OR_RETURN(replayed->device_, MakeDevice<float>(file, workers, DeviceChoice()));
  SYNCGRADS_ASSIGN_OR_RETURN(
      replayed->model_,
      BuildModel<float>(file.model(), replayed->data_.shape, NoCustomLayers(), *replayed->device_));
  replayed->model_->Initialise(file.seed());
  SYNCGRADS_ASSIGN_OR_RETURN(replayed->optimizer_, FromProto(file.optimizer()));
  std::vector<TensorSpec> tensors;
  for (const Parameter<float>* parameter : replayed->model_->parameters()) {
    replayed->tensors_.push_back(TensorId{static_cast<uint32_t>(tensors.size())});
    tensors.push_back(parameter->spec());
  }
  if (file.has_checkpoint()) {
    // The tensor that announces a checkpoint is registered before the last parameter.
    tensors.insert(tensors.end() - 1, {"checkpoint due", DType::kF32, {1}});
    replayed->tensors_.back() = TensorId{ToNumber(replayed->tensors_.back()) + 1};
  }
  SYNCGRADS_ASSIGN_OR_RETURN(replayed->layout_, Layout::Create(tensors, file.chunk_bytes()));
  for (uint32_t rank = 0; rank < (replayed->dynamic() ? 1 : workers); ++rank) {
    ShardOwners owners;
    owners.workers = workers;
    if (!replayed->dynamic()) owners.rank = rank;
    SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<Batches> batches,
                               MakeBatches(file, replayed->data_, owners));
    replayed->batches_.push_back(std::move(batches));
  }
  for (const Shard& shard : replayed->data_.data.shards) {
    replayed->rows_in_pass_ += shard.table.rows;
  }
  return replayed;
}

absl::StatusOr<std::vector<RowId>> Replayed::RowsOf(const std::string& worker, const Step& step) {
  StepMembers members;
  members.epoch = step.epoch;
  members.world_size = static_cast<uint32_t>(step.members.size());
  members.rank = static_cast<uint32_t>(absl::c_find(step.members, worker) - step.members.begin());
  if (dynamic()) return batches_.front()->RowsFor(members);
  SYNCGRADS_ASSIGN_OR_RETURN(const uint32_t rank, RankOf(worker));
  if (rank >= batches_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("there is no worker \"", worker, "\""));
  }
  return batches_[rank]->RowsFor(members);
}

std::vector<Row> Replayed::ToRows(const std::vector<RowId>& ids) const {
  std::vector<Row> rows;
  for (const RowId& id : ids) rows.emplace_back(data_.data.shards[id.shard].number, id.row);
  return rows;
}

// Returns true if the worker may have skipped this step: it has no rows in it, and the step is the
// first of its epoch. It may have skipped the step while the previous epoch assigned it no rows,
// and a skip is valid in any epoch.
bool MayHaveSkipped(const Stint& stint, std::vector<Step>::const_iterator seen,
                    const std::string& worker) {
  return seen->rows.empty() && !absl::c_linear_search(seen->contributors, worker) &&
         seen != stint.steps.begin() && std::prev(seen)->epoch < seen->epoch;
}

absl::Status Replayed::CheckRows(const Step& step, const History& history,
                                 const std::map<std::string, std::vector<RowId>>& rows) {
  for (const auto& [worker, stints] : history) {
    for (const Stint& stint : stints) {
      const auto seen = absl::c_lower_bound(
          stint.steps, step.number,
          [](const Step& made, uint64_t number) { return made.number < number; });
      if (seen == stint.steps.end() || seen->number != step.number) continue;
      // A late worker has logged the rows that it contributed to an earlier step.
      if (!waits_for_all() && !absl::c_linear_search(step.contributors, worker)) continue;
      const std::vector<Row>& logged = seen->rows;
      const std::vector<Row> due = ToRows(rows.at(worker));
      if (logged == due) continue;
      if (dynamic() && MayHaveSkipped(stint, seen, worker)) continue;
      return absl::DataLossError(absl::StrCat(worker, " trained on rows ", List(logged),
                                              " in step ", step.number, ", and its own are ",
                                              List(due)));
    }
  }
  return dynamic() ? CountPass(step, rows) : absl::OkStatus();
}

absl::Status Replayed::CountPass(const Step& step,
                                 const std::map<std::string, std::vector<RowId>>& rows) {
  for (const std::string& worker : step.contributors) {
    for (const Row& row : ToRows(rows.at(worker))) {
      if (counted_.insert(row).second) continue;
      return absl::DataLossError(absl::StrCat("row ", List({row}), ", which ", worker,
                                              " contributed in step ", step.number,
                                              ", has been counted before in this pass"));
    }
  }
  if (counted_.size() == rows_in_pass_) counted_.clear();
  return absl::OkStatus();
}

absl::StatusOr<Gradients> Replayed::GradientsOf(const std::vector<RowId>& rows, uint64_t step) {
  Matrix<float> features, output_gradient;
  std::vector<double> targets;
  const ImageUse use = {/*training=*/true, job_.file.seed(), step - 1};
  SYNCGRADS_RETURN_IF_ERROR(ReadRows(data_, rows, use, features, targets, nullptr));
  const Pass pass = {/*training=*/true, job_.file.seed(), step - 1, 0};
  const Matrix<float>& outputs = model_->Forward(pass, features);
  const double divisor =
      loss_.Divisor(static_cast<int64_t>(rows.size()), data_.shape.size(), /*weights=*/0);
  LossGradient(loss_, outputs, targets, divisor, output_gradient);
  Gradients gradients(model_->parameters().size());
  SYNCGRADS_RETURN_IF_ERROR(model_->Backward(output_gradient, [&](size_t i) {
    model_->Penalise(loss_, i);
    gradients[i] = model_->parameters()[i]->gradient;
    return absl::OkStatus();
  }));
  return gradients;
}

void Replayed::Apply(Memory& memory, size_t t, uint64_t first, const std::vector<float>& average) {
  const int slots = SlotCount(optimizer_);
  if (memory.slots.empty()) {
    memory.slots.assign(static_cast<size_t>(slots), std::vector<float>(average.size()));
  }
  std::vector<const std::byte*> old_slots;
  std::vector<std::byte*> new_slots;
  for (std::vector<float>& slot : memory.slots) {
    old_slots.push_back(reinterpret_cast<const std::byte*>(slot.data()));
    new_slots.push_back(reinterpret_cast<std::byte*>(slot.data()));
  }
  std::byte* const values =
      reinterpret_cast<std::byte*>(model_->parameters()[t]->values.data() + first);
  ApplyUpdate(optimizer_, DType::kF32, ++memory.updates,
              reinterpret_cast<const std::byte*>(average.data()), average.size(), values, values,
              old_slots, new_slots);
}

// Returns Σg / n over the contributors, added in rank order.
std::vector<float> Average(const std::vector<const float*>& sources, uint64_t elements) {
  std::vector<float> average(elements);
  for (uint64_t e = 0; e < elements; ++e) {
    for (size_t s = 0; s < sources.size(); ++s) {
      average[e] = s == 0 ? sources[s][e] : average[e] + sources[s][e];
    }
    if (sources.size() > 1) average[e] /= static_cast<float>(sources.size());
  }
  return average;
}

void Replayed::Update(const Step& step, const std::map<std::string, Gradients>& gradients) {
  for (size_t t = 0; t < tensors_.size(); ++t) {
    const Layout::ChunkRange range = layout_->ChunksOf(tensors_[t]);
    std::vector<float> whole;  // the average of the whole tensor, if workers optimize
    bool anybody = false;
    for (uint32_t c = range.first; c < range.first + range.count; ++c) {
      const Chunk& chunk = layout_->chunk(ChunkId{c});
      const Span& span = chunk.spans[chunk.SpanOf(tensors_[t])];
      std::vector<const float*> sources;
      for (const std::string& worker : ContributorsOf(step, c)) {
        sources.push_back(gradients.at(worker)[t].data() + span.tensor_offset);
      }
      // The average is zero if there were no contributors.
      const std::vector<float> average = Average(sources, span.elements);
      anybody = anybody || !sources.empty();
      if (!servers_optimize()) {
        whole.insert(whole.end(), average.begin(), average.end());
      } else if (!sources.empty()) {
        Apply(memories_[{c, t}], t, span.tensor_offset, average);
      }
    }
    if (!servers_optimize() && anybody) Apply(memories_[{0, t}], t, 0, whole);
  }
}

absl::Status Replayed::Make(const Step& step, const History& history) {
  if (!step.parts.empty() && step.parts.size() != layout_->chunks().size()) {
    return absl::DataLossError(absl::StrCat("step ", step.number, " has ", step.parts.size(),
                                            " chunks, and the layout has ",
                                            layout_->chunks().size()));
  }
  std::map<std::string, std::vector<RowId>> rows;
  for (const std::string& worker : step.members) {
    SYNCGRADS_ASSIGN_OR_RETURN(rows[worker], RowsOf(worker, step));
  }
  SYNCGRADS_RETURN_IF_ERROR(CheckRows(step, history, rows));
  std::map<std::string, Gradients> gradients;
  for (const std::string& worker : step.contributors) {
    SYNCGRADS_ASSIGN_OR_RETURN(gradients[worker], GradientsOf(rows[worker], step.number));
  }
  Update(step, gradients);
  StepOutcome outcome;
  outcome.step = step.number;
  outcome.members = step.members;
  for (uint32_t rank = 0; rank < step.members.size(); ++rank) {
    if (absl::c_linear_search(step.contributors, step.members[rank])) {
      outcome.contributors.push_back(rank);
    }
  }
  for (const std::unique_ptr<Batches>& batches : batches_) batches->Advance(outcome);
  return absl::OkStatus();
}

}  // namespace

std::string KeptPath(const std::string& output, uint64_t step) {
  return absl::StrCat(output, ".step-", step);
}

absl::Status Replay(const std::string& job, uint32_t workers, const History& history,
                    const std::string& output, const std::set<uint64_t>& kept) {
  SYNCGRADS_ASSIGN_OR_RETURN(Job loaded, LoadJobFile(job));
  SYNCGRADS_ASSIGN_OR_RETURN(const std::unique_ptr<Replayed> replayed,
                             Replayed::Create(std::move(loaded), workers));
  for (const Step* step : StepsOf(history)) {
    SYNCGRADS_RETURN_IF_ERROR(replayed->Make(*step, history));
    if (kept.count(step->number) == 0) continue;
    SYNCGRADS_RETURN_IF_ERROR(replayed->Save(KeptPath(output, step->number)));
  }
  return replayed->Save(output);
}

}  // namespace syncgrads::fault
