#include "worker/trainer/local_steps.h"

#include <cstddef>
#include <numeric>
#include <optional>

#include "common/dtype.h"
#include "common/status_macros.h"

namespace syncgrads {
namespace {

template <typename T>
void Subtract(const void* minuend, const void* subtrahend, size_t count, void* difference) {
  for (size_t e = 0; e < count; ++e) {
    static_cast<T*>(difference)[e] =
        static_cast<const T*>(minuend)[e] - static_cast<const T*>(subtrahend)[e];
  }
}

}  // namespace

LocalSteps::LocalSteps(TrainingRun& run, Replica& replica, GradientEngine& engine,
                       TrainingGroup& group, TrainingState& state, SoloSteps& steps)
    : run_(run),
      replica_(replica),
      engine_(engine),
      group_(group),
      state_(state),
      steps_(steps),
      all_(replica.parameters().size()),
      began_with_(replica.parameters().size()) {
  std::iota(all_.begin(), all_.end(), 0);
}

absl::Status LocalSteps::Run() {
  while (!run_.batches->ended()) {
    SYNCGRADS_RETURN_IF_ERROR(steps_.CheckStop());
    SYNCGRADS_RETURN_IF_ERROR(TrainCycle());
  }
  return group_.EndAndFollow([&]() -> absl::Status {
    SYNCGRADS_RETURN_IF_ERROR(steps_.CheckStop());
    return FollowCycle();
  });
}

absl::Status LocalSteps::TrainCycle() {
  SYNCGRADS_RETURN_IF_ERROR(replica_.Fetch(ReplicaPart::kValues));
  for (const size_t i : all_) {
    const HostParameter& parameter = replica_.parameters()[i];
    const char* const values = static_cast<const char*>(parameter.values);
    began_with_[i].assign(values, values + parameter.spec.bytes());
  }
  std::vector<RowId> rows;
  SYNCGRADS_RETURN_IF_ERROR(steps_.Make(run_.job.consistency().local_steps().steps(), rows));
  run_.guard.Begin(run_.steps);
  // Waits for the device, which may still read the parameters that results overwrite.
  SYNCGRADS_RETURN_IF_ERROR(replica_.Fetch(ReplicaPart::kValues));
  SYNCGRADS_RETURN_IF_ERROR(replica_.Finish());
  if (rows.empty()) {
    SYNCGRADS_RETURN_IF_ERROR(group_.SkipAll());
  } else {
    SYNCGRADS_RETURN_IF_ERROR(group_.group().SetWeight(static_cast<double>(rows.size())));
    SYNCGRADS_RETURN_IF_ERROR(PushChange());
  }
  return FinishCycle(rows);
}

absl::Status LocalSteps::PushChange() {
  for (size_t i = all_.size(); i-- > 0;) {
    const HostParameter& parameter = replica_.parameters()[i];
    const MutableTensor& change = parameter.gradient;
    if (change.dtype == DType::kF64) {
      Subtract<double>(began_with_[i].data(), parameter.values, change.elements, change.data);
    } else {
      Subtract<float>(began_with_[i].data(), parameter.values, change.elements, change.data);
    }
    SYNCGRADS_RETURN_IF_ERROR(group_.Push(i));
  }
  return absl::OkStatus();
}

absl::Status LocalSteps::FollowCycle() {
  run_.guard.Begin(run_.steps + 1);
  SYNCGRADS_RETURN_IF_ERROR(engine_.JoinWithoutRows());
  SYNCGRADS_RETURN_IF_ERROR(group_.SkipAll());
  return FinishCycle({});
}

absl::Status LocalSteps::FinishCycle(const std::vector<RowId>& rows) {
  // In WaitStep the client may send this state to a newcomer, so the host must have it.
  if (run_.job.has_elastic()) SYNCGRADS_RETURN_IF_ERROR(replica_.Fetch(ReplicaPart::kTrained));
  bool left_out = false;
  SYNCGRADS_RETURN_IF_ERROR(group_.WaitStep(run_.options.step_timeout, &left_out).status());
  {
    const PhaseClock::Scope applies(run_.phases, &StepTimes::apply);
    run_.rate.of_job = group_.group().learning_rate_factor();
    replica_.Upload(all_);
  }
  // The steps have been counted as they were made.
  state_.SaveCounters();
  if (run_.options.event_log != nullptr) {
    const PhaseClock::Scope gets(run_.phases, &StepTimes::wait);
    SYNCGRADS_ASSIGN_OR_RETURN(const StepOutcome outcome,
                               group_.group().LastStep(run_.options.step_timeout));
    run_.options.event_log->Stepped(outcome, rows, run_.data.data);
  }
  return left_out ? run_.guard.Finish() : absl::OkStatus();
}

}  // namespace syncgrads
