#include "client/session/state_handover.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/session/session.h"
#include "client/session/wait.h"
#include "common/planted_bug.h"
#include "common/status_macros.h"

namespace syncgrads::client {
namespace {

// The delay before sending is tried again, while an earlier round of the handover, which a newer
// epoch has replaced, still uses its buffers.
constexpr absl::Duration kRetry = absl::Milliseconds(50);

}  // namespace

GroupSpec StateSpec(const GroupSpec& of, absl::Span<const NamedTensor> state) {
  GroupSpec spec;
  spec.name = absl::StrCat("state/", of.name);
  spec.rule = Reduction::kSum;  // of one contribution: the result is that one, bit by bit
  spec.policy = First{};
  spec.non_finite = OnBad::kAllow;
  // The servers refuse a state that a donor sent for an older epoch than the round's.
  spec.one_epoch = !IsPlanted(PlantedBug::kStateOfAnOlderEpoch);
  for (const NamedTensor& tensor : state) spec.tensors.push_back(tensor.spec);
  spec.tensors.push_back({"state/step", DType::kI64, {}});
  return spec;
}

StateHandover::StateHandover(GroupId of, std::shared_ptr<GroupRounds> rounds,
                             absl::Span<const NamedTensor> state, MemberId self, Timers& timers)
    : of_(of), rounds_(std::move(rounds)), self_(self), timers_(timers) {
  for (const NamedTensor& tensor : state) {
    tensors_.push_back(absl::MakeSpan(static_cast<std::byte*>(tensor.data), tensor.spec.bytes()));
  }
  tensors_.push_back(absl::MakeSpan(reinterpret_cast<std::byte*>(&step_), sizeof step_));
}

void StateHandover::OnEpoch(const Epoch& epoch) {
  {
    MutexLock lock(mutex_);
    // The call with the newest epoch of a new listener may come after that with a newer one.
    if (epoch.number < epoch_.number) return;
    epoch_ = epoch;
  }
  Give();
}

void StateHandover::Open(Round step) {
  {
    MutexLock lock(mutex_);
    open_at_ = step;
  }
  Give();
}

void StateHandover::Give() {
  // Repeated because an epoch that arrives while the state is being sent may request it again.
  while (const std::optional<Attempt> attempt = BeginGiving()) {
    const absl::Status sent = Send(*attempt);
    EndGiving(*attempt, sent.ok());
    if (absl::IsDeadlineExceeded(sent)) GiveLater();
    // If the group has failed, the step that the caller waits for fails too.
    if (!sent.ok()) return;
  }
}

std::optional<StateHandover::Attempt> StateHandover::BeginGiving() {
  MutexLock lock(mutex_);
  if (giving_ || !open_at_.has_value() || !epoch_.handover.has_value()) return std::nullopt;
  if (epoch_.handover->donor != self_) return std::nullopt;
  if (FindRound(epoch_.handover->rounds, of_) != open_at_) return std::nullopt;
  const std::optional<Round> listed = FindRound(epoch_.first_rounds, rounds_->plan().id);
  if (!listed.has_value()) return std::nullopt;
  const Request request{*listed, epoch_.number};
  if (request == given_ && !is_given_up_) return std::nullopt;
  giving_ = true;
  return Attempt{request, *open_at_, !given_.has_value() || is_given_up_};
}

void StateHandover::EndGiving(const Attempt& attempt, bool sent) {
  MutexLock lock(mutex_);
  giving_ = false;
  if (sent) {
    given_ = attempt.request;
    is_given_up_ = false;
  }
  changed_.NotifyAll();
}

absl::Status StateHandover::Send(const Attempt& attempt) {
  if (!attempt.first && !rounds_->IsOver(rounds_->AllChunks())) {
    return absl::DeadlineExceededError("an earlier round of the handover is not over");
  }
  // A failed round is over as well, once the transport has released its buffers.
  SYNCGRADS_RETURN_IF_ERROR(rounds_->BeginAgain(attempt.request.round, absl::InfinitePast()));
  rounds_->PinEpoch(attempt.request.epoch);
  step_ = static_cast<int64_t>(ToNumber(attempt.step));
  for (uint32_t t = 0; t < tensors_.size(); ++t) {
    // The push fails only if the group has failed. The request counts as fulfilled, because buffers
    // may be in use from here on, and Close has to wait for them.
    if (!rounds_->Push(TensorId{t}, tensors_[t], {}).ok()) break;
  }
  return absl::OkStatus();
}

void StateHandover::GiveLater() {
  timers_.After(kRetry, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->Give();
  });
}

absl::Status StateHandover::Close(absl::Time deadline) {
  std::optional<Request> given;
  {
    MutexLock lock(mutex_);
    open_at_.reset();  // from now on nobody begins to send
    while (giving_) {
      if (changed_.WaitUntil(mutex_, deadline) || !giving_) continue;
      return absl::DeadlineExceededError(absl::StrCat(
          "the state in group \"", rounds_->plan().spec.name, "\" is still being sent"));
    }
    given = given_;
  }
  if (!given.has_value()) return absl::OkStatus();
  const absl::Status released = rounds_->BeginAgain(given->round, deadline);
  MutexLock lock(mutex_);
  is_given_up_ = !released.ok();
  if (released.ok()) given_.reset();
  return released;
}

absl::Status StateHandover::Take(Round step, absl::Time deadline, Session& session) {
  while (true) {
    const Epoch epoch = session.epochs().newest();
    const std::optional<Round> round = FindRound(epoch.first_rounds, rounds_->plan().id);
    const bool listed = epoch.handover.has_value() && round.has_value() &&
                        std::find(epoch.handover->to.begin(), epoch.handover->to.end(), self_) !=
                            epoch.handover->to.end();
    if (!listed) {
      return absl::FailedPreconditionError(absl::StrCat("epoch ", epoch.number,
                                                        " names no donor for this worker in "
                                                        "group \"",
                                                        rounds_->plan().spec.name, "\""));
    }
    SYNCGRADS_RETURN_IF_ERROR(rounds_->BeginAgain(*round, deadline));
    for (uint32_t t = 0; t < tensors_.size(); ++t) {
      SYNCGRADS_RETURN_IF_ERROR(rounds_->Skip(TensorId{t}, tensors_[t]));
    }
    const absl::Status status = AwaitAnswers(*rounds_, rounds_->AllChunks(),
                                             deadline - timers_.Now(), *session.data_plane());
    if (status.ok()) break;
    SYNCGRADS_RETURN_IF_ERROR(session.status());
    if (absl::IsDeadlineExceeded(status)) return status;
    // The donor is gone, or the round was abandoned: the next epoch names another donor.
    SYNCGRADS_RETURN_IF_ERROR(session.epochs().Await(epoch.number + 1, deadline).status());
  }
  SYNCGRADS_RETURN_IF_ERROR(rounds_->EndRound());
  if (step_ == static_cast<int64_t>(ToNumber(step))) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the received state is that before step ", step_,
                                          ", but this worker begins with step ", ToNumber(step)));
}

}  // namespace syncgrads::client
