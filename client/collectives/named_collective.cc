#include "client/collectives/named_collective.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/session/wait.h"
#include "common/status_macros.h"

namespace syncgrads::client {

NamedCollective::NamedCollective(GroupSpec spec, Session& session)
    : spec_(std::move(spec)), session_(session) {}

bool NamedCollective::refused() const {
  MutexLock lock(mutex_);
  return refused_;
}

absl::Status NamedCollective::Begin(std::shared_ptr<CollectiveCall> call) {
  std::shared_ptr<GroupRounds> rounds;
  bool registers = false;
  {
    MutexLock lock(mutex_);
    if (current_ != nullptr && !current_->outcome.has_value() && rounds_ != nullptr &&
        rounds_->IsOver(rounds_->AllChunks())) {
      ConcludeLocked(*current_);  // complete, but no caller has waited for it
    }
    if (!failure_.ok()) return failure_;
    if (current_ != nullptr && !current_->outcome.has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat("operation \"", spec_.name,
                       "\" is in progress: wait for it before using the name again"));
    }
    current_ = call;
    rounds = rounds_;
    registers = rounds == nullptr && !registering_;
    registering_ = registering_ || registers;
  }
  if (rounds != nullptr) {
    Contribute(*rounds, call);
  } else if (registers) {
    session_.RegisterRounds(
        spec_, /*link_rate=*/0,
        [self = shared_from_this()](absl::StatusOr<std::shared_ptr<GroupRounds>> rounds) {
          self->OnRegistered(std::move(rounds));
        });
  }
  return absl::OkStatus();
}

void NamedCollective::OnRegistered(absl::StatusOr<std::shared_ptr<GroupRounds>> rounds) {
  std::shared_ptr<CollectiveCall> call;
  {
    MutexLock lock(mutex_);
    registering_ = false;
    call = current_;
    if (rounds.ok()) {
      rounds_ = *rounds;
    } else {
      refused_ = true;
      failure_ = rounds.status();
      call->outcome = rounds.status();
      changed_.NotifyAll();
      return;
    }
    changed_.NotifyAll();
  }
  Contribute(**rounds, call);
}

void NamedCollective::Contribute(GroupRounds& rounds, const std::shared_ptr<CollectiveCall>& call) {
  for (uint32_t t = 0; t < call->buffers.size(); ++t) {
    const CollectiveCall::Buffer& buffer = call->buffers[t];
    const absl::Status status = buffer.skip
                                    ? rounds.Skip(TensorId{t}, buffer.result)
                                    : rounds.Push(TensorId{t}, buffer.values, buffer.result);
    if (!status.ok()) {
      rounds.Fail(status);  // the wait returns it
      return;
    }
  }
}

bool NamedCollective::IsReady(const CollectiveCall& call) const {
  MutexLock lock(mutex_);
  return call.outcome.has_value() || (rounds_ != nullptr && rounds_->IsOver(rounds_->AllChunks()));
}

void NamedCollective::ConcludeLocked(CollectiveCall& call) {
  absl::Status status = rounds_->Outcome(rounds_->AllChunks());
  if (!status.ok()) {
    failure_ = status;
    call.outcome = status;
    return;
  }
  call.outcome = call.conclude(*rounds_);
  status = rounds_->EndRound();
  if (!status.ok()) failure_ = status;
}

absl::StatusOr<uint32_t> NamedCollective::Wait(CollectiveCall& call, absl::Duration timeout) {
  const absl::Time deadline = session_.timers().Now() + timeout;
  std::shared_ptr<GroupRounds> rounds;
  {
    MutexLock lock(mutex_);
    while (!call.outcome.has_value() && rounds_ == nullptr) {
      if (changed_.WaitUntil(mutex_, deadline)) continue;
      if (call.outcome.has_value() || rounds_ != nullptr) break;
      return absl::DeadlineExceededError(
          absl::StrCat("the coordinator has not answered the "
                       "registration of \"",
                       spec_.name, "\""));
    }
    if (call.outcome.has_value()) return *call.outcome;
    rounds = rounds_;
  }
  absl::Status status = AwaitAnswers(*rounds, rounds->AllChunks(),
                                     deadline - session_.timers().Now(), *session_.data_plane());
  {
    MutexLock lock(mutex_);
    if (!call.outcome.has_value()) {
      if (!rounds->IsOver(rounds->AllChunks())) return status;
      // The last answer may have arrived after the deadline.
      status = rounds->Outcome(rounds->AllChunks());
      if (status.ok()) {
        ConcludeLocked(call);
        return *call.outcome;
      }
    } else {
      return *call.outcome;
    }
  }
  // A chunk has failed, so the call has failed. Its buffers must be released before it returns.
  rounds->Fail(status);
  if (!rounds->AwaitReleased(deadline)) {
    return absl::DeadlineExceededError(
        absl::StrCat("\"", spec_.name,
                     "\" has failed, but its buffers are still being sent: ", status.message()));
  }
  MutexLock lock(mutex_);
  if (!call.outcome.has_value()) ConcludeLocked(call);
  return *call.outcome;
}

}  // namespace syncgrads::client
