#include "worker/train/trainer.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/trace/trace.h"
#include "worker/base/out_of_memory.h"
#include "worker/train/make_reader.h"
#include "worker/train/model_file.h"

namespace syncgrads {
namespace {

// The workers of a job that is stopped receive the signal within this time of each other.
constexpr absl::Duration kStopSpread = absl::Seconds(30);

// An upper bound of the number of parts of a batch: step * kMaxParts + part is unique.
constexpr uint64_t kMaxParts = uint64_t{1} << 32;

size_t PartsOf(const v1::JobFile& job, const std::vector<RowId>& rows) {
  return std::min<size_t>(std::max(job.micro_batches(), 1u), rows.size());
}

absl::Span<const RowId> PartOf(const std::vector<RowId>& rows, size_t part, size_t parts) {
  const size_t begin = rows.size() * part / parts;
  const size_t end = rows.size() * (part + 1) / parts;
  return absl::MakeConstSpan(rows).subspan(begin, end - begin);
}

}  // namespace

template <typename T>
Trainer<T>::~Trainer() {
  if (!finished_) team_.Leave();
}

template <typename T>
Trace* Trainer<T>::trace() {
  return step_under_way() < options_.trace_steps ? options_.trace : nullptr;
}

template <typename T>
absl::Status Trainer<T>::CheckStop() {
  if (!options_.should_stop || !options_.should_stop()) return absl::OkStatus();
  SYNCGRADS_RETURN_IF_ERROR(FinishUnfinished());
  if (due_tensor_.has_value() && kept_step_ != steps_) {
    // A checkpoint that has been announced is taken after the next step.
    if (checkpoint_follows_) return absl::OkStatus();
    SYNCGRADS_ASSIGN_OR_RETURN(const bool others_have_stopped, OthersHaveStopped());
    if (others_have_stopped) {
      return absl::CancelledError(
          absl::StrCat("stopped by a signal after step ", steps_, "; another worker was stopped ",
                       "after step ", kept_step_, ", and the checkpoint of that step is the last"));
    }
    if (!is_last_) {
      is_last_ = checkpoint_requested_ = true;
      return absl::OkStatus();
    }
  }
  return absl::CancelledError(absl::StrCat("stopped by a signal after step ", steps_));
}

template <typename T>
absl::StatusOr<bool> Trainer<T>::OthersHaveStopped() {
  if (job_.has_elastic() || kept_contributors_ == 0) return false;
  if (options_.clock->Now() - kept_at_ > kStopSpread) return false;
  SYNCGRADS_ASSIGN_OR_RETURN(const StepOutcome last, group_->LastStep(options_.step_timeout));
  return last.contributors.size() < kept_contributors_;
}

template <typename T>
absl::Status Trainer<T>::Train() {
  SetTraceRole("trainer");
  options_.progress->Started(plan_);
  // A run that is resumed may have ended already.
  stops_early_ = record_.ReasonToStop().has_value();
  absl::Status trained = competes() ? Compete() : TrainTogether();
  if (trained.ok()) trained = ValidateLastStep();
  if (trained.ok()) trained = KeepLastStep();
  if (trained.ok()) trained = FetchValues();
  if (trained.ok()) trained = UseFinalStates();
  if (trained.ok() || absl::IsCancelled(trained)) FinishCheckpoints();
  SYNCGRADS_RETURN_IF_ERROR(trained);
  if (options_.event_log != nullptr) {
    options_.event_log->Ends(makes_local_steps() ? rounds_ : steps_);
  }
  options_.progress->Finished();
  finished_ = true;
  return absl::OkStatus();
}

template <typename T>
absl::Status Trainer<T>::TrainTogether() {
  while (!batches_->ended() && !stops_early_) {
    SYNCGRADS_RETURN_IF_ERROR(CheckStop());
    if (makes_local_steps()) {
      SYNCGRADS_RETURN_IF_ERROR(TrainCycle());
    } else if (group_->steps_behind() > 0) {
      SYNCGRADS_RETURN_IF_ERROR(FollowStep().status());
    } else {
      SYNCGRADS_RETURN_IF_ERROR(TrainStep());
    }
  }
  SYNCGRADS_RETURN_IF_ERROR(group_->End(options_.step_timeout));
  while (true) {
    SYNCGRADS_RETURN_IF_ERROR(CheckStop());
    SYNCGRADS_ASSIGN_OR_RETURN(const bool more, FollowStep());
    if (!more) return absl::OkStatus();
  }
}

template <typename T>
absl::Status Trainer<T>::TrainStep() {
  while (true) {
    StepMembers members;
    if (batches_->depends_on_members()) {
      const PhaseClock::Scope waits(phases_, &StepTimes::wait);
      SYNCGRADS_ASSIGN_OR_RETURN(members, group_->BeginStep());
    }
    const std::vector<RowId> rows =
        unfinished_.has_value() ? batches_->RowsAhead(1) : batches_->RowsFor(members);
    model_->SetTrace(trace());
    const Trace::Span span(trace(), Trace::Row::kSteps, "step", step_under_way() + 1);
    SYNCGRADS_ASSIGN_OR_RETURN(const std::optional<double> loss, PushBatch(rows));
    SYNCGRADS_ASSIGN_OR_RETURN(const bool overlaps, Overlaps());
    if (overlaps) {
      unfinished_.emplace(Unfinished{rows, loss, std::vector<bool>(tensors_.size())});
      return absl::OkStatus();
    }
    const absl::Status finished = FinishStep(rows, loss);
    if (!absl::IsAborted(finished) || !batches_->depends_on_members()) return finished;
    // The step's members have changed since its rows were assigned.
    SYNCGRADS_RETURN_IF_ERROR(group_->RestartStep(options_.step_timeout));
  }
}

template <typename T>
void* Trainer<T>::ResultOf(size_t i) {
  Parameter<T>& parameter = *model_->parameters()[i];
  return has_parameters_on_servers() ? parameter.values.data() : parameter.gradient.data();
}

template <typename T>
absl::StatusOr<std::optional<double>> Trainer<T>::PushBatch(const std::vector<RowId>& rows) {
  if (!unfinished_.has_value()) SYNCGRADS_RETURN_IF_ERROR(BeginContribution(rows));
  if (rows.empty()) {
    if (exchange_.has_value()) SYNCGRADS_RETURN_IF_ERROR(exchange_->Skip());
    SYNCGRADS_RETURN_IF_ERROR(SkipBatch());
    return std::optional<double>();
  }
  last_batch_ = step_under_way() + 1;
  SYNCGRADS_ASSIGN_OR_RETURN(const std::optional<double> loss, ComputeGradient(rows));
  if (loss.has_value() && guard_.watches_norms()) SYNCGRADS_RETURN_IF_ERROR(PushOrSkip());
  return loss;
}

template <typename T>
absl::StatusOr<std::optional<double>> Trainer<T>::ComputeGradient(const std::vector<RowId>& rows) {
  const PhaseClock::Scope computes(phases_, &StepTimes::compute);
  SYNCGRADS_ASSIGN_OR_RETURN(const double divisor, DivisorOf(rows));
  // Drops the downloads of a batch that was abandoned.
  downloads_.clear();
  double loss = 0;
  SYNCGRADS_RETURN_IF_ERROR(ReadAhead(rows));
  pushed_.assign(tensors_.size(), false);
  try {
    const absl::Status computed = ComputeBatch(rows, PartsOf(job_, rows), divisor, loss);
    // If layers use the batches of all workers, the others wait for this worker's part of
    // the batch: it cannot skip the step.
    if (IsOutOfMemory(computed) && !exchange_.has_value()) {
      SYNCGRADS_RETURN_IF_ERROR(SkipRest(rows, computed.message()));
      return std::optional<double>();
    }
    SYNCGRADS_RETURN_IF_ERROR(computed);
  } catch (const std::bad_alloc&) {
    if (exchange_.has_value()) return OutOfMemoryError("not enough memory to compute the gradient");
    SYNCGRADS_RETURN_IF_ERROR(SkipRest(rows, "not enough memory to compute the gradient"));
    return std::optional<double>();
  }
  // The fetch of the updated parameters, which Apply has started, may take until here.
  if (!optimizes_on_servers()) {
    SYNCGRADS_ASSIGN_OR_RETURN(penalty_, FindPenalty());
  }
  return std::optional<double>(penalty_ + loss);
}

template <typename T>
absl::StatusOr<double> Trainer<T>::FindPenalty() {
  if (loss_.l2 == 0) return 0.0;
  SYNCGRADS_RETURN_IF_ERROR(FetchValues());
  double penalty = 0;
  for (const Parameter<T>* parameter : model_->parameters()) penalty += Penalty(loss_, *parameter);
  return penalty;
}

template <typename T>
absl::Status Trainer<T>::ComputeBatch(const std::vector<RowId>& rows, size_t parts, double divisor,
                                      double& loss) {
  for (size_t part = 0; part < parts; ++part) {
    SYNCGRADS_RETURN_IF_ERROR(ReadPart(rows, part, parts));
    const bool is_first = part == 0;
    const bool is_last = part + 1 == parts;
    if (targets_.empty()) {
      // None of the part's images could be read.
      SYNCGRADS_RETURN_IF_ERROR(FinishBefore(rows));
      SYNCGRADS_RETURN_IF_ERROR(TakeZeros(is_first, is_last));
      continue;
    }
    if (exchange_.has_value()) {
      exchange_->Begin(job_.weight_by_samples() ? static_cast<double>(rows.size()) : 1);
    }
    // The number of the pass differs for each part, and so do its random choices.
    const Pass pass = {/*training=*/true, job_.seed(), step_under_way() * parts + part,
                       team_.rank()};
    SYNCGRADS_RETURN_IF_ERROR(model_->ComputeGradients(
        pass, features_, loss_, targets_, divisor, [&](size_t i) { return TakeResult(i, rows); },
        [&](size_t i) { return TakeGradient(i, is_first, is_last); }));
  }
  ReadPartAhead();
  SYNCGRADS_RETURN_IF_ERROR(PushDownloaded(/*all=*/true));
  SYNCGRADS_ASSIGN_OR_RETURN(const double losses, model_->TakeLoss());
  loss += losses;
  return absl::OkStatus();
}

template <typename T>
absl::Status Trainer<T>::ReadPart(const std::vector<RowId>& rows, size_t part, size_t parts) {
  const PhaseClock::Scope reads(phases_, &StepTimes::read);
  if (reader_ != nullptr) {
    const uint64_t number = step_under_way() * kMaxParts + part;
    const std::optional<PartAhead> ahead = std::exchange(part_ahead_, std::nullopt);
    if (ahead.has_value()) {
      if (ahead->number == number) return ahead->status;
      model_->ForgetAhead();
    }
    return reader_->Take(number, features_, targets_, SkippedImages());
  }
  const ImageUse use = {/*training=*/true, job_.seed(), step_under_way()};
  return FillBatch(data_, PartOf(rows, part, parts), use, features_, targets_, SkippedImages());
}

template <typename T>
void Trainer<T>::ReadPartAhead() {
  const uint64_t number = (step_under_way() + 1) * kMaxParts;
  if (reader_ == nullptr || device_->memory().is_host() || !reader_->IsRead(number)) return;
  part_ahead_ = {number, reader_->Take(number, features_, targets_, SkippedImages())};
  if (part_ahead_->status.ok() && !targets_.empty()) model_->BringAhead(features_);
}

template <typename T>
absl::Status Trainer<T>::ReadAhead(const std::vector<RowId>& rows) {
  if (reader_ == nullptr) return absl::OkStatus();
  const uint64_t step = step_under_way();
  // A worker that was late under a quorum has skipped some of the steps that it read
  // ahead.
  ForgetPartsBefore(step);
  SYNCGRADS_RETURN_IF_ERROR(BeginParts(step, rows));
  for (size_t ahead = 1; ahead <= BatchesAhead(job_.data()); ++ahead) {
    const uint64_t number = step + ahead;
    SYNCGRADS_RETURN_IF_ERROR(BeginParts(number, batches_->RowsAhead(number - steps_)));
  }
  return absl::OkStatus();
}

template <typename T>
void Trainer<T>::ForgetPartsBefore(uint64_t step) {
  if (reader_ != nullptr) reader_->ForgetBefore(step * kMaxParts);
}

template <typename T>
absl::Status Trainer<T>::BeginParts(uint64_t step, const std::vector<RowId>& rows) {
  const size_t parts = PartsOf(job_, rows);
  for (size_t part = 0; part < parts; ++part) {
    const absl::Span<const RowId> own = PartOf(rows, part, parts);
    SYNCGRADS_RETURN_IF_ERROR(reader_->Begin(step * kMaxParts + part, {own.begin(), own.end()},
                                             {/*training=*/true, job_.seed(), step}));
  }
  return absl::OkStatus();
}

template <typename T>
absl::StatusOr<double> Trainer<T>::DivisorOf(const std::vector<RowId>& rows) const {
  double weights = 0;
  if (loss_.reduction == Loss::Reduction::kByColumn) {
    for (const RowId& id : rows) weights += data_.data.shards[id.shard].table.weights[id.row];
    if (!(weights > 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the ", rows.size(), " rows of step ", step_under_way(), " have a total weight of ",
          weights, " in column \"", job_.data().weight_column(),
          "\", must be positive: the loss is divided by it"));
    }
  }
  return loss_.Divisor(static_cast<int64_t>(rows.size()), data_.shape.size(), weights);
}

template <typename T>
absl::Status Trainer<T>::TakeGradient(size_t i, bool first, bool last) {
  // After an exchange has failed, the gradient does not include the other workers'
  // batches: nothing may be pushed.
  if (exchange_.has_value()) SYNCGRADS_RETURN_IF_ERROR(exchange_->status());
  Parameter<T>& parameter = *model_->parameters()[i];
  T* gradient = parameter.device_gradient();
  const int64_t size = parameter.values.size();
  if (!first) device_->Add(size, gradient, accumulated_[i].data(), gradient);
  if (!last) {
    while (accumulated_.size() < tensors_.size()) accumulated_.emplace_back(device_->memory());
    accumulated_[i].Resize(1, size);
    device_->memory().Copy(gradient, parameter.bytes(), accumulated_[i].data());
    return absl::OkStatus();
  }
  AddPenaltyGradient(loss_, *device_, parameter);
  downloads_.emplace_back(i, parameter.QueueGradient());
  return PushDownloaded(/*all=*/false);
}

template <typename T>
absl::Status Trainer<T>::PushDownloaded(bool all) {
  while (!downloads_.empty()) {
    const auto [i, download] = downloads_.front();
    if (!all && !device_->memory().HasEnded(download)) break;
    SYNCGRADS_RETURN_IF_ERROR(device_->memory().Wait(download));
    if (!needs_whole_gradient()) SYNCGRADS_RETURN_IF_ERROR(PushGradient(i));
    downloads_.pop_front();
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status Trainer<T>::TakeZeros(bool first, bool last) {
  if (exchange_.has_value()) SYNCGRADS_RETURN_IF_ERROR(exchange_->Skip());
  for (size_t i = model_->parameters().size(); i-- > 0;) {
    Parameter<T>& parameter = *model_->parameters()[i];
    device_->memory().SetZero(parameter.device_gradient(), parameter.bytes());
    SYNCGRADS_RETURN_IF_ERROR(TakeGradient(i, first, last));
  }
  return absl::OkStatus();
}

template <typename T>
DamagedImages* Trainer<T>::SkippedImages() {
  return job_.data().imagenet().damaged() == v1::ImageNetSource::SKIPPED ? &damaged_ : nullptr;
}

template <typename T>
absl::Status Trainer<T>::SkipBatch() {
  // Waits until the device has read the parameters, which results may overwrite. Without
  // a gradient there is no download that would show this.
  SYNCGRADS_RETURN_IF_ERROR(device_->memory().Finish());
  return group_->SkipAll(Results());
}

template <typename T>
absl::StatusOr<bool> Trainer<T>::FollowStep() {
  guard_.Begin(steps_ + 1);
  if (exchange_.has_value()) SYNCGRADS_RETURN_IF_ERROR(exchange_->Skip());
  absl::Status status = SkipBatch();
  if (status.ok()) status = FinishStep({}, std::nullopt);
  if (absl::IsOutOfRange(status)) return false;
  SYNCGRADS_RETURN_IF_ERROR(status);
  return true;
}

template <typename T>
void Trainer<T>::ReportStep(size_t rows, std::optional<double> loss) {
  const double factor = RateFactor(rate_schedule_, steps_ - 1, team_.world_size());
  options_.progress->Used({.rows = loss.has_value() ? rows : 0,
                           .times = phases_.Take(),
                           .learning_rate = base_rate_ * rate_factor_ * job_factor_ * factor});
  options_.progress->Stepped(steps_, loss);
}

template <typename T>
absl::Status Trainer<T>::CallBack(std::optional<double> loss) {
  const std::vector<StepCallback>& callbacks = options_.extensions->after_step;
  if (callbacks.empty()) return absl::OkStatus();
  const auto save = [this](const std::string& path) {
    SYNCGRADS_RETURN_IF_ERROR(FetchValues());
    return SaveModel(*model_, data_.classes, job_.name(), path);
  };
  const MadeStep made = {steps_, plan_.steps, loss, team_.rank(), team_.world_size(), save};
  for (const StepCallback& callback : callbacks) SYNCGRADS_RETURN_IF_ERROR(callback(made));
  return absl::OkStatus();
}

template <typename T>
absl::Status Trainer<T>::Apply(absl::Span<const size_t> parameters) {
  SYNCGRADS_RETURN_IF_ERROR(optimizer_->Apply(parameters));
  // Starts to fetch what the host needs in every step, in parallel with the next forward
  // pass.
  if (job_.has_elastic() && !trains_alone()) {
    optimizer_->BeginFetch();
  } else if (loss_.l2 != 0) {
    optimizer_->BeginFetchValues();
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status Trainer<T>::FetchValues() {
  return optimizer_ == nullptr ? absl::OkStatus() : optimizer_->FetchValues();
}

template <typename T>
absl::Status Trainer<T>::FetchState() {
  if (optimizer_ != nullptr) SYNCGRADS_RETURN_IF_ERROR(optimizer_->Fetch());
  return model_->FetchStates();
}

template <typename T>
absl::Status Trainer<T>::UseResults(absl::Span<const size_t> parameters,
                                    absl::Span<const Contributors> contributors) {
  const PhaseClock::Scope applies(phases_, &StepTimes::apply);
  job_factor_ = group_->learning_rate_factor();
  if (optimizer_ == nullptr || makes_local_steps()) {
    for (const size_t i : parameters) model_->parameters()[i]->Upload();
    return absl::OkStatus();
  }
  ClipGradients(contributors);
  optimizer_->SetRateFactor(job_factor_ * RateFactor(rate_schedule_, steps_, team_.world_size()));
  // A parameter to which no worker contributed a gradient is not updated.
  std::vector<size_t> with_gradients;
  for (const size_t i : parameters) {
    if (contributors[ToNumber(tensors_[i])].most > 0) with_gradients.push_back(i);
  }
  const Trace::Span span(trace(), Trace::Row::kResults, "update");
  return Apply(with_gradients);
}

template <typename T>
absl::Status Trainer<T>::FinishStep(const std::vector<RowId>& rows, std::optional<double> loss) {
  // In WaitStep the client may send this state to a newcomer, so the host must have it.
  if (job_.has_elastic() && optimizer_ != nullptr) {
    SYNCGRADS_RETURN_IF_ERROR(optimizer_->Fetch());
  }
  const uint64_t step = group_->step();
  std::optional<Trace::Span> waits(std::in_place, trace(), Trace::Row::kResults, "wait for step",
                                   step);
  std::optional<PhaseClock::Scope> wait(std::in_place, phases_, &StepTimes::wait);
  // The workers of an elastic job may need very different times for a validation.
  const bool waits_for_validations =
      job_.has_elastic() && steps_ > 0 && record_.last_step() == steps_;
  SYNCGRADS_ASSIGN_OR_RETURN(
      const std::vector<Contributors> contributors,
      group_->WaitStep(waits_for_validations ? absl::InfiniteDuration() : options_.step_timeout));
  wait.reset();
  waits.reset();
  const bool left_out = NoteLeftOut(contributors);
  // More than 1 if this worker was late under a quorum and the others continued without it.
  const uint64_t made = group_->step() - step;
  rounds_ = group_->step() - 1;
  std::vector<size_t> left;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!unfinished_.has_value() || !unfinished_->taken[i]) left.push_back(i);
  }
  SYNCGRADS_RETURN_IF_ERROR(UseResults(left, contributors));
  if (optimizer_ != nullptr) optimizer_->ForgetKept();
  // TrainAlone has already counted the local steps.
  if (!makes_local_steps()) steps_ += made;
  SaveCounters();
  const bool announced =
      TakesCheckpoint(due_tensor_.has_value() && contributors[ToNumber(*due_tensor_)].most > 0);
  const bool validates = IsValidationDue(steps_);
  StepOutcome outcome;
  if (batches_->depends_on_members() || options_.event_log != nullptr || announced || validates ||
      !validated_with_.empty()) {
    const PhaseClock::Scope gets(phases_, &StepTimes::wait);
    SYNCGRADS_ASSIGN_OR_RETURN(outcome, group_->LastStep(options_.step_timeout));
  }
  if (options_.event_log != nullptr) options_.event_log->Stepped(outcome, rows, data_.data);
  if (makes_local_steps()) return left_out ? guard_.Finish() : absl::OkStatus();
  // This worker's rows of the steps that it missed are not used by any worker.
  batches_->Advance(outcome);
  for (uint64_t missed = 1; missed < made && !batches_->ended(); ++missed) {
    batches_->Advance(outcome);
  }
  ReportStep(rows.size(), loss);
  SYNCGRADS_RETURN_IF_ERROR(CallBack(loss));
  SYNCGRADS_RETURN_IF_ERROR(guard_.Finish());
  SYNCGRADS_RETURN_IF_ERROR(CheckReplicas());
  if (!validated_with_.empty()) NoteLostInValidation(outcome);
  if (validates) SYNCGRADS_RETURN_IF_ERROR(Validate());
  if (validates && job_.has_elastic()) validated_with_ = outcome.members;
  if (announced || (validates && KeepsBest() && record_.is_best())) {
    SYNCGRADS_RETURN_IF_ERROR(TakeCheckpoint(outcome));
  }
  ReportCheckpoints();
  return absl::OkStatus();
}

template class Trainer<float>;
template class Trainer<double>;

}  // namespace syncgrads
