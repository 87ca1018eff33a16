// RegisteredGroup: the methods for elastic jobs and for groups of one epoch.

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "client/session/registered_group.h"
#include "client/session/session.h"
#include "client/session/wait.h"
#include "common/status_macros.h"

namespace syncgrads::client {

std::shared_ptr<StateHandover> RegisteredGroup::handover() const {
  MutexLock lock(mutex_);
  return handover_;
}

absl::StatusOr<bool> RegisteredGroup::RegisterState(absl::Span<const NamedTensor> state,
                                                    absl::Duration timeout) {
  const absl::Time deadline = session_.timers().Now() + timeout;
  SYNCGRADS_RETURN_IF_ERROR(session_.CheckMember());
  if (handover() != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("group \"", spec().name, "\" already has its state"));
  }
  const bool on_servers = std::holds_alternative<Optimizer>(spec().rule);
  std::vector<NamedTensor> ours;
  for (const NamedTensor& tensor : state) {
    if (tensor.data == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("null data for tensor \"", tensor.spec.name,
                                                     "\" of the state of group \"", spec().name,
                                                     "\""));
    }
    if (!on_servers || !by_name_.contains(tensor.spec.name)) ours.push_back(tensor);
  }
  SYNCGRADS_ASSIGN_OR_RETURN(std::shared_ptr<GroupRounds> rounds,
                             session_.AwaitRounds(StateSpec(spec(), ours), deadline));
  auto handover = std::make_shared<StateHandover>(rounds_->plan().id, std::move(rounds), ours,
                                                  session_.epochs().self(), session_.timers());
  const bool newcomer = session_.is_newcomer();
  if (newcomer) {
    SYNCGRADS_RETURN_IF_ERROR(TakeState(*handover, state, deadline));
  }
  {
    MutexLock lock(mutex_);
    handover_ = handover;
  }
  session_.AddHandover(std::move(handover));
  SYNCGRADS_RETURN_IF_ERROR(session_.ReportReady(rounds_->plan().id, deadline));
  return newcomer;
}

absl::Status RegisteredGroup::TakeState(StateHandover& handover,
                                        absl::Span<const NamedTensor> state, absl::Time deadline) {
  const Round step = rounds_->round();
  if (std::holds_alternative<Optimizer>(spec().rule)) {
    SYNCGRADS_RETURN_IF_ERROR(PullParameters(state, step, deadline));
  }
  return handover.Take(step, deadline, session_);
}

absl::Status RegisteredGroup::PullParameters(absl::Span<const NamedTensor> state, Round step,
                                             absl::Time deadline) {
  // A skip of the previous round is answered with its result, which is the parameters.
  SYNCGRADS_RETURN_IF_ERROR(rounds_->BeginAgain(Previous(step), deadline));
  for (uint32_t t = 0; t < spec().tensors.size(); ++t) {
    const auto found = std::find_if(state.begin(), state.end(), [&](const NamedTensor& tensor) {
      return tensor.spec.name == spec().tensors[t].name;
    });
    if (found != state.end() && !(found->spec == spec().tensors[t])) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor \"", found->spec.name, "\" is ", ToString(found->spec), " in the state, but ",
          ToString(spec().tensors[t]), " in group \"", spec().name, "\""));
    }
    void* const memory = found == state.end() ? nullptr : found->data;
    SYNCGRADS_RETURN_IF_ERROR(rounds_->Skip(TensorId{t}, ResultOf(TensorId{t}, memory)));
  }
  SYNCGRADS_RETURN_IF_ERROR(AwaitAnswers(
      *rounds_, rounds_->AllChunks(), deadline - session_.timers().Now(), *session_.data_plane()));
  return rounds_->EndRound();
}

absl::StatusOr<StepMembers> RegisteredGroup::BeginStep() {
  SYNCGRADS_RETURN_IF_ERROR(session_.CheckMember());
  SYNCGRADS_ASSIGN_OR_RETURN(const Epoch epoch,
                             session_.epochs().Of(rounds_->plan().id, rounds_->round()));
  StepMembers members;
  members.epoch = epoch.number;
  members.world_size = static_cast<uint32_t>(epoch.members.size());
  members.rank = epoch.RankOf(session_.epochs().self()).value_or(0);
  rounds_->PinEpoch(epoch.number);
  return members;
}

absl::Status RegisteredGroup::RestartStep(absl::Duration timeout) {
  const absl::Time deadline = session_.timers().Now() + timeout;
  const std::optional<uint64_t> made_in = rounds_->pinned_epoch();
  const absl::Status refusal = rounds_->Refusal();
  if (!made_in.has_value() && refusal.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("step ", step(), " of group \"", spec().name, "\" has not begun"));
  }
  // Waits for all answers: a refusal that came after the restart would be taken for one of the next
  // attempt. A skipped chunk is not refused. Its round may wait for a newcomer that waits for this
  // worker's state, so the state can be sent in the meantime.
  const std::shared_ptr<StateHandover> state = handover();
  if (state != nullptr) state->Open(rounds_->round());
  const bool answered = rounds_->AwaitAnswered(deadline);
  if (state != nullptr) SYNCGRADS_RETURN_IF_ERROR(state->Close(deadline));
  if (!answered) {
    return absl::DeadlineExceededError(absl::StrCat("step ", step(), " of group \"", spec().name,
                                                    "\" has chunks without an answer"));
  }
  if (made_in.has_value() && absl::IsAborted(refusal)) {
    SYNCGRADS_RETURN_IF_ERROR(session_.epochs().Await(*made_in + 1, deadline).status());
  }
  return rounds_->BeginAgain(rounds_->round(), deadline);
}

absl::StatusOr<StepOutcome> RegisteredGroup::LastStep(absl::Duration timeout) const {
  StepOutcome outcome;
  {
    MutexLock lock(mutex_);
    outcome.step = ToNumber(last_step_);
    outcome.epoch = last_closing_.epoch;
    outcome.contributors = last_closing_.contributors;
    outcome.whole = last_closing_.whole;
    outcome.parts = last_closing_.parts;
  }
  if (outcome.epoch == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no step of group \"", spec().name, "\" has ended"));
  }
  SYNCGRADS_ASSIGN_OR_RETURN(
      const Epoch epoch, session_.epochs().Await(outcome.epoch, session_.timers().Now() + timeout));
  for (const Member& member : epoch.members) outcome.members.push_back(member.name);
  if (!outcome.contributors.empty() && outcome.contributors.back() >= outcome.members.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the servers list rank ", outcome.contributors.back(),
                     " as a contributor to step ", outcome.step, " of group \"", spec().name,
                     "\", but epoch ", epoch.number, " has ", outcome.members.size(), " members"));
  }
  return outcome;
}

}  // namespace syncgrads::client
