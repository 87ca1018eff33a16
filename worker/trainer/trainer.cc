#include "worker/trainer/trainer.h"

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/contract/contract.h"
#include "common/optim/optimizer.h"
#include "common/status_macros.h"
#include "common/trace/trace.h"
#include "worker/job/consistency.h"
#include "worker/trainer/best_of.h"
#include "worker/trainer/local_steps.h"
#include "worker/trainer/plan.h"
#include "worker/trainer/together.h"

namespace syncgrads {

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const Job& job, const DataSet& data,
                                                         Team& team,
                                                         const TrainerOptions& options) {
  const v1::JobFile& file = job.file;
  if (data.stream != nullptr && options.should_stop) {
    data.stream->StopWaitingIf(options.should_stop);
  }
  SYNCGRADS_ASSIGN_OR_RETURN(std::unique_ptr<Batches> batches,
                             MakeBatches(file, data, OwnersOf(file, team, options)));
  auto trainer = absl::WrapUnique(new Trainer(file, data, team, options, std::move(batches)));
  TrainingRun& run = trainer->run_;
  SYNCGRADS_ASSIGN_OR_RETURN(trainer->parts_, MakeModelParts(run));
  SoleWorker nobody_else;
  Team& informed = ReadsAllData(file) ? nobody_else : team;
  SYNCGRADS_RETURN_IF_ERROR(MakePlan(run, informed));
  SYNCGRADS_RETURN_IF_ERROR(PrepareModel(job, run, trainer->replica(), informed));
  SYNCGRADS_RETURN_IF_ERROR(trainer->Assemble());
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
  SYNCGRADS_RETURN_IF_ERROR(trainer->ShareState());
  SYNCGRADS_RETURN_IF_ERROR(trainer->replica().UploadAll());
  if (options.resumption == nullptr && !team.is_newcomer()) trainer->replica().BeginAverage();
  if (options.event_log != nullptr) {
    options.event_log->Begins(trainer->group_->group().step(), team.is_newcomer());
  }
  return trainer;
}

Trainer::Trainer(const v1::JobFile& job, const DataSet& data, Team& team,
                 const TrainerOptions& options, std::unique_ptr<Batches> batches)
    : options_(options), run_(job, data, team, options_, std::move(batches)) {}

Trainer::~Trainer() {
  if (!finished_) run_.team.Leave();
}

absl::Status Trainer::Assemble() {
  Replica& replica = *parts_.replica;
  GradientEngine& engine = *parts_.engine;
  states_.emplace(run_, replica, engine);
  validator_.emplace(run_, replica, *states_);
  state_.emplace(run_, replica, *validator_);

  SYNCGRADS_ASSIGN_OR_RETURN(const Optimizer optimizer, FromProto(run_.job.optimizer()));
  run_.rate.base = std::visit([](const auto& rule) { return rule.learning_rate; }, optimizer);
  if (!competes()) {
    SYNCGRADS_RETURN_IF_ERROR(ShareGradients());
    SYNCGRADS_ASSIGN_OR_RETURN(group_, TrainingGroup::Register(run_, replica));
  }
  if (!run_.optimizes_on_servers()) {
    SYNCGRADS_RETURN_IF_ERROR(replica.CreateOptimizer(optimizer));
  }
  keeper_.emplace(run_, replica, *states_, *validator_, *state_, group_.get());

  if (competes()) {
    // A worker whose model diverges only loses the comparison.
    solo_.emplace(run_, replica, engine, *keeper_, SoloSteps::NonFinite::kApplied);
    mode_ = std::make_unique<BestOf>(run_, replica, *state_, *solo_);
  } else if (run_.job.consistency().has_local_steps()) {
    solo_.emplace(run_, replica, engine, *keeper_, SoloSteps::NonFinite::kRefused);
    mode_ = std::make_unique<LocalSteps>(run_, replica, engine, *group_, *state_, *solo_);
  } else {
    mode_ =
        std::make_unique<Together>(run_, replica, engine, *group_, *validator_, *state_, *keeper_);
  }
  return absl::OkStatus();
}

absl::Status Trainer::ShareGradients() {
  const absl::Status shared = parts_.replica->ShareGradients(run_.team);
  if (!absl::IsResourceExhausted(shared)) return shared;
  if (options_.note) {
    options_.note(absl::StrCat(
        "gradients are not in shared memory, so servers on this host cannot read them directly: ",
        shared.message()));
  }
  return absl::OkStatus();
}

absl::Status Trainer::ShareState() {
  const bool is_newcomer = run_.team.is_newcomer();
  if (options_.resumption != nullptr) {
    SYNCGRADS_RETURN_IF_ERROR(state_->Restore(*options_.resumption, *group_));
    keeper_->NoteRestored();
  } else if (!is_newcomer) {
    SYNCGRADS_RETURN_IF_ERROR(ShareInitialParameters());
  }
  if (!run_.job.has_elastic()) return absl::OkStatus();
  state_->SaveCounters();
  SYNCGRADS_ASSIGN_OR_RETURN(
      const bool received,
      group_->group().RegisterState(state_->ForNewcomers(), options_.step_timeout));
  if (!received) return absl::OkStatus();
  state_->RestoreCounters();
  run_.batches->ContinueAfter(run_.steps);
  return absl::OkStatus();
}

absl::Status Trainer::ShareInitialParameters() {
  if (!run_.has_parameters_on_servers()) {
    std::vector<NamedTensor> tensors = parts_.replica->Values();
    const absl::Span<const NamedTensor> frozen = parts_.replica->frozen();
    tensors.insert(tensors.end(), frozen.begin(), frozen.end());
    return run_.team.BroadcastAll("model/initial", tensors, /*root=*/0);
  }
  const absl::Span<const NamedTensor> frozen = parts_.replica->frozen();
  if (!frozen.empty()) {
    SYNCGRADS_RETURN_IF_ERROR(run_.team.BroadcastAll("model/frozen", frozen, /*root=*/0));
  }
  Group& group = group_->group();
  SYNCGRADS_RETURN_IF_ERROR(group.Broadcast(/*root=*/0, group_->Values(), options_.step_timeout));
  // Under a quorum, the others may have made steps without this worker. Its rows of
  // those steps are not used.
  for (; run_.steps + 1 < group.step(); ++run_.steps) {
    if (!run_.batches->ended()) run_.batches->Advance(StepOutcome());
  }
  return absl::OkStatus();
}

absl::Status Trainer::Train() {
  SetTraceRole("trainer");
  options_.progress->Started(run_.plan);
  validator_->Start();
  absl::Status trained = mode_->Run();
  if (trained.ok()) trained = validator_->ValidateLastStep();
  if (trained.ok()) trained = keeper_->TakeLast();
  if (trained.ok()) trained = parts_.replica->Fetch(ReplicaPart::kValues);
  // With best_of, all workers have the states of the best one.
  if (trained.ok() && !competes()) trained = states_->UseMeanForGood();
  if (trained.ok()) trained = parts_.replica->UseAverage();
  if (trained.ok() || absl::IsCancelled(trained)) keeper_->Finish();
  SYNCGRADS_RETURN_IF_ERROR(trained);
  if (options_.event_log != nullptr) {
    options_.event_log->Ends(run_.job.consistency().has_local_steps() ? run_.rounds : run_.steps);
  }
  options_.progress->Finished();
  finished_ = true;
  return absl::OkStatus();
}

std::optional<Snapshot> Trainer::KeepState() {
  // With best_of, workers have made different steps alone.
  if (run_.has_parameters_on_servers() || competes()) return std::nullopt;
  Replica& replica = *parts_.replica;
  // The operation that ran out of memory has not changed the state.
  replica.ForgetExhaustion();
  replica.Undo();
  if (!replica.Fetch(ReplicaPart::kAll).ok()) return std::nullopt;
  return state_->TakeSnapshot({});
}

}  // namespace syncgrads
