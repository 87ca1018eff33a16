// Trainer: steps that a worker makes alone, and the synchronisation between them.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/train/evaluation.h"
#include "worker/train/trainer.h"

namespace syncgrads {
namespace {

// Returns the worker with the least loss; in a tie, the lowest rank. A collective.
absl::StatusOr<uint32_t> FindBest(double loss, Team& team) {
  // A model that has diverged is worse than any other.
  if (std::isnan(loss)) loss = std::numeric_limits<double>::infinity();
  const std::string mine(reinterpret_cast<const char*>(&loss), sizeof(loss));
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> all, team.Gather("best/loss", mine));
  if (all.size() != team.world_size()) {
    return absl::AbortedError(absl::StrCat("a worker was lost: ", all.size(), " of ",
                                           team.world_size(), " workers have sent their loss"));
  }
  std::vector<double> losses(all.size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].size() != sizeof(double)) {
      return absl::DataLossError(
          absl::StrCat("malformed loss from rank ", rank, ": ", all[rank].size(), " bytes"));
    }
    std::memcpy(&losses[rank], all[rank].data(), sizeof(double));
  }
  return static_cast<uint32_t>(std::min_element(losses.begin(), losses.end()) - losses.begin());
}

}  // namespace

template <typename T>
absl::Status Trainer<T>::TrainAlone(std::vector<RowId>& rows) {
  guard_.Begin(steps_ + 1);
  const std::vector<RowId> batch = batches_->RowsFor(StepMembers());
  // With local_steps, the factor of the last round: no worker knows that of the round to come.
  optimizer_->SetRateFactor(rate_factor_ * job_factor_ *
                            RateFactor(rate_schedule_, steps_, team_.world_size()));
  std::optional<double> loss;
  bool applied = false;
  if (!batch.empty()) {
    SYNCGRADS_ASSIGN_OR_RETURN(loss, ComputeGradient(batch));
  }
  if (loss.has_value()) {
    SYNCGRADS_ASSIGN_OR_RETURN(applied, ApplyAlone());
  }
  if (applied) rows.insert(rows.end(), batch.begin(), batch.end());
  ++steps_;
  batches_->Advance(StepOutcome());
  ReportStep(applied ? batch.size() : 0, loss);
  SYNCGRADS_RETURN_IF_ERROR(CallBack(loss));
  return guard_.Finish();
}

template <typename T>
absl::StatusOr<bool> Trainer<T>::ApplyAlone() {
  SYNCGRADS_ASSIGN_OR_RETURN(const bool admitted, AdmitGradient());
  if (!admitted) return false;
  const PhaseClock::Scope applies(phases_, &StepTimes::apply);
  // This worker is the only contributor.
  ClipGradients(std::vector<Contributors>(tensors_.size(), Contributors{.most = 1}));
  std::vector<size_t> all(tensors_.size());
  std::iota(all.begin(), all.end(), 0);
  SYNCGRADS_RETURN_IF_ERROR(Apply(all));
  return true;
}

template <typename T>
absl::Status Trainer<T>::TrainCycle() {
  SYNCGRADS_RETURN_IF_ERROR(FetchValues());
  began_with_.resize(tensors_.size());
  for (size_t i = 0; i < tensors_.size(); ++i) began_with_[i] = model_->parameters()[i]->values;
  std::vector<RowId> rows;
  const uint32_t steps = job_.consistency().local_steps().steps();
  for (uint32_t step = 0; step < steps && !batches_->ended(); ++step) {
    SYNCGRADS_RETURN_IF_ERROR(CheckStop());
    SYNCGRADS_RETURN_IF_ERROR(TrainAlone(rows));
  }
  guard_.Begin(steps_);
  // Waits for the device, which may still read the parameters that results overwrite.
  SYNCGRADS_RETURN_IF_ERROR(FetchValues());
  SYNCGRADS_RETURN_IF_ERROR(device_->memory().Finish());
  if (rows.empty()) {
    SYNCGRADS_RETURN_IF_ERROR(SkipBatch());
    return FinishStep(rows, std::nullopt);
  }
  SYNCGRADS_RETURN_IF_ERROR(group_->SetWeight(static_cast<double>(rows.size())));
  for (size_t i = tensors_.size(); i-- > 0;) {
    const Parameter<T>& parameter = *model_->parameters()[i];
    const T* const values = parameter.values.data();
    T* const change = model_->parameters()[i]->gradient.data();
    for (int64_t e = 0; e < parameter.values.size(); ++e) {
      change[e] = began_with_[i].data()[e] - values[e];
    }
    SYNCGRADS_RETURN_IF_ERROR(PushGradient(i));
  }
  return FinishStep(rows, std::nullopt);
}

template <typename T>
absl::Status Trainer<T>::Compete() {
  const v1::BestOf& best_of = job_.consistency().best_of();
  const uint64_t own_steps = batches_->StepsWith(team_.world_size());
  double cycles = std::ceil(static_cast<double>(own_steps) / best_of.steps());
  // A worker whose rows are used up continues to take part in the comparisons.
  SYNCGRADS_RETURN_IF_ERROR(
      team_.AllReduce("best/cycles", absl::MakeSpan(&cycles, 1), Reduction::kMax).status());
  std::vector<RowId> rows;
  while (static_cast<double>(rounds_) < cycles) {
    for (uint32_t step = 0; step < best_of.steps() && !batches_->ended(); ++step) {
      SYNCGRADS_RETURN_IF_ERROR(CheckStop());
      SYNCGRADS_RETURN_IF_ERROR(TrainAlone(rows));
    }
    SYNCGRADS_RETURN_IF_ERROR(CheckStop());
    SYNCGRADS_RETURN_IF_ERROR(TakeBestState());
    ++rounds_;
    if (best_of.factor_every() != 0 && rounds_ % best_of.factor_every() == 0) {
      rate_factor_ *= best_of.factor();
    }
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status Trainer<T>::TakeBestState() {
  const std::vector<RowId> held_out =
      RowsOf(data_.data, job_.data().validation_every(), /*held_out=*/true);
  SoleWorker alone;
  EvaluationSource<T> source =
      MakeEvaluationSource<T>(job_, job_.data(), data_, team_.world_size(), options_.device);
  SYNCGRADS_ASSIGN_OR_RETURN(
      const Evaluation mine,
      Evaluate("best/mine", *model_, loss_, source, held_out, alone, {.damaged = SkippedImages()}));
  SYNCGRADS_ASSIGN_OR_RETURN(const uint32_t best, FindBest(mine.loss, team_));
  SYNCGRADS_RETURN_IF_ERROR(FetchState());
  SYNCGRADS_RETURN_IF_ERROR(team_.BroadcastAll("best/state", WholeState(), best));
  optimizer_->UploadSlots();
  SYNCGRADS_RETURN_IF_ERROR(model_->Upload());
  // Keeps this worker's own position in its rows.
  counters_[0] = static_cast<int64_t>(steps_);
  RestoreCounters();
  return absl::OkStatus();
}

template <typename T>
std::vector<NamedTensor> Trainer<T>::WholeState() {
  SaveCounters();
  std::vector<NamedTensor> state = {
      {{"trainer/counters", DType::kI64, {static_cast<int64_t>(counters_.size())}},
       counters_.data()}};
  for (Parameter<T>* parameter : model_->parameters()) {
    state.push_back({parameter->spec(), parameter->values.data()});
  }
  for (NamedTensor& tensor : SlotTensors()) state.push_back(std::move(tensor));
  for (Parameter<T>* layer_state : model_->states()) {
    state.push_back({layer_state->spec(), layer_state->values.data()});
  }
  return state;
}

// Instantiates the members that are defined in this file.
#define SYNCGRADS_INSTANTIATE(T)                                     \
  template absl::Status Trainer<T>::TrainAlone(std::vector<RowId>&); \
  template absl::StatusOr<bool> Trainer<T>::ApplyAlone();            \
  template absl::Status Trainer<T>::TrainCycle();                    \
  template absl::Status Trainer<T>::Compete();                       \
  template absl::Status Trainer<T>::TakeBestState();                 \
  template std::vector<NamedTensor> Trainer<T>::WholeState();
SYNCGRADS_INSTANTIATE(float)
SYNCGRADS_INSTANTIATE(double)
#undef SYNCGRADS_INSTANTIATE

}  // namespace syncgrads
