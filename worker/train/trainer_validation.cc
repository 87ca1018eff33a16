// Trainer: evaluates the model while it is trained, and ends the training early.

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "worker/train/evaluation.h"
#include "worker/train/trainer.h"
#include "worker/train/validation.h"

namespace syncgrads {
namespace {

// Returns the number that GatherStates adds behind a worker's states.
uint64_t RecencyOf(const std::string& states) {
  uint64_t recency;
  std::memcpy(&recency, &states[states.size() - sizeof(recency)], sizeof(recency));
  return recency;
}

}  // namespace

template <typename T>
bool Trainer<T>::IsValidationDue(uint64_t step) const {
  return validations_.has_value() && (validations_->IsDue(step) || step == plan_.steps);
}

template <typename T>
std::string Trainer<T>::OwnStates() const {
  std::string own;
  for (const Parameter<T>* state : model_->states()) {
    own.append(reinterpret_cast<const char*>(state->values.data()), state->bytes());
  }
  return own;
}

template <typename T>
absl::StatusOr<std::vector<std::string>> Trainer<T>::GatherStates() {
  std::vector<std::string> states;
  // The members of an elastic job change between steps, so it has no collectives there.
  if (job_.has_elastic() || model_->states().empty()) return states;
  const bool rows = !RowsOf(data_.data, job_.data().validation_every(), /*held_out=*/false).empty();
  std::string own = OwnStates();
  // 0: the states are the initial ones. Layers that use the batches of all workers have the same
  // states on all workers, but for those whose rows ended earlier.
  const uint64_t recency = !rows ? 0 : exchange_.has_value() ? 1 + last_batch_ : 1;
  own.append(reinterpret_cast<const char*>(&recency), sizeof(recency));
  return team_.Gather("layer_states", own);
}

template <typename T>
void Trainer<T>::UseMeanStates(const std::vector<std::string>& states) {
  uint64_t newest = 0;
  for (const std::string& of_worker : states) newest = std::max(newest, RecencyOf(of_worker));
  size_t begin = 0;  // offset in the states of each worker
  for (Parameter<T>* state : model_->states()) {
    std::vector<double> sum(static_cast<size_t>(state->values.size()));
    uint32_t workers = 0;
    for (const std::string& of_worker : states) {
      if (RecencyOf(of_worker) != newest) continue;
      ++workers;
      for (size_t i = 0; i < sum.size(); ++i) {
        T value;
        std::memcpy(&value, &of_worker[begin + i * sizeof(T)], sizeof(T));
        sum[i] += static_cast<double>(value);
      }
    }
    for (size_t i = 0; i < sum.size(); ++i) {
      state->values.data()[i] = static_cast<T>(sum[i] / workers);
    }
    begin += state->bytes();
    state->Upload();
  }
}

template <typename T>
absl::Status Trainer<T>::UseStates(const std::string& own) {
  // The device may still read the host's values that are replaced here.
  SYNCGRADS_RETURN_IF_ERROR(device_->memory().Finish());
  size_t begin = 0;
  for (Parameter<T>* state : model_->states()) {
    std::memcpy(state->values.data(), &own[begin], state->bytes());
    begin += state->bytes();
    state->Upload();
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status Trainer<T>::UseFinalStates() {
  // With best_of, all workers have the states of the best one.
  if (competes()) return absl::OkStatus();
  SYNCGRADS_RETURN_IF_ERROR(model_->FetchStates());
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> states, GatherStates());
  if (states.empty()) return absl::OkStatus();
  SYNCGRADS_RETURN_IF_ERROR(device_->memory().Finish());
  UseMeanStates(states);
  return absl::OkStatus();
}

template <typename T>
absl::StatusOr<Evaluation> Trainer<T>::EvaluateValidationRows() {
  SoleWorker alone;
  Team& team = job_.has_elastic() ? static_cast<Team&>(alone) : team_;
  const bool own_source = options_.validation != nullptr;
  const DataSet& data = own_source ? *options_.validation : data_;
  const std::vector<RowId> rows =
      RowsOf(data.data, own_source ? 0 : job_.data().validation_every(), /*held_out=*/!own_source);
  EvaluationSource<T> source = MakeEvaluationSource<T>(job_, ValidationDataOf(job_), data,
                                                       team_.world_size(), options_.device);
  const bool skips = ValidationDataOf(job_).imagenet().damaged() == v1::ImageNetSource::SKIPPED;
  SYNCGRADS_ASSIGN_OR_RETURN(const Evaluation evaluation,
                             Evaluate("validation", *model_, loss_, source, rows, team,
                                      {TopsOf(job_), skips ? &damaged_ : nullptr}));
  if (evaluation.workers < team.world_size()) {
    return absl::AbortedError(absl::StrCat("a worker was lost in the validation after step ",
                                           steps_, ": ", evaluation.workers, " of ",
                                           team.world_size(), " workers took part"));
  }
  return evaluation;
}

template <typename T>
absl::Status Trainer<T>::Validate() {
  SYNCGRADS_RETURN_IF_ERROR(model_->FetchStates());
  const std::string own = OwnStates();
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> states, GatherStates());
  if (!states.empty()) UseMeanStates(states);
  SYNCGRADS_ASSIGN_OR_RETURN(validation_, EvaluateValidationRows());
  if (!states.empty()) SYNCGRADS_RETURN_IF_ERROR(UseStates(own));
  record_.Add(steps_, *validation_);
  const Scores scores = ValidationScores(*validation_);
  if (!scores.empty()) {
    options_.progress->Validated(steps_, scores);
  } else if (options_.warn) {
    options_.warn(absl::StrCat("validation after step ", steps_, ": no row could be read"));
  }
  // In an elastic job each worker has its own figures, and job files with both are refused.
  if (const std::optional<std::string> reason = record_.ReasonToStop(); reason.has_value()) {
    if (!stops_early_) options_.progress->StoppedEarly(steps_, *reason);
    stops_early_ = true;
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status Trainer<T>::ValidateLastStep() {
  if (!validations_.has_value() || (record_.last_step() == steps_ && validation_.has_value())) {
    return absl::OkStatus();
  }
  return Validate();
}

template <typename T>
void Trainer<T>::NoteLostInValidation(const StepOutcome& outcome) {
  std::vector<std::string> lost;
  for (const std::string& member : validated_with_) {
    if (std::find(outcome.members.begin(), outcome.members.end(), member) ==
        outcome.members.end()) {
      lost.push_back(member);
    }
  }
  if (lost.empty()) return;
  validated_with_.clear();
  if (options_.note) {
    options_.note(absl::StrCat("gone since the validation after step ", record_.last_step(), ": ",
                               absl::StrJoin(lost, ", "), "; training continues"));
  }
}

// Instantiates the members that are defined in this file.
#define SYNCGRADS_INSTANTIATE(T)                                                \
  template bool Trainer<T>::IsValidationDue(uint64_t) const;                    \
  template std::string Trainer<T>::OwnStates() const;                           \
  template absl::StatusOr<std::vector<std::string>> Trainer<T>::GatherStates(); \
  template void Trainer<T>::UseMeanStates(const std::vector<std::string>&);     \
  template absl::Status Trainer<T>::UseStates(const std::string&);              \
  template absl::Status Trainer<T>::UseFinalStates();                           \
  template absl::StatusOr<Evaluation> Trainer<T>::EvaluateValidationRows();     \
  template absl::Status Trainer<T>::Validate();                                 \
  template absl::Status Trainer<T>::ValidateLastStep();                         \
  template void Trainer<T>::NoteLostInValidation(const StepOutcome&);
SYNCGRADS_INSTANTIATE(float)
SYNCGRADS_INSTANTIATE(double)
#undef SYNCGRADS_INSTANTIATE

}  // namespace syncgrads
