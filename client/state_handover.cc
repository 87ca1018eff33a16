#include "client/state_handover.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/session.h"
#include "client/wait.h"
#include "common/status_macros.h"

namespace syncgrads::client {
namespace {

// Until an earlier round of the handover, which a newer epoch overtook, is over.
constexpr absl::Duration kRetry = absl::Milliseconds(50);

}  // namespace

GroupSpec StateSpec(const GroupSpec& of, absl::Span<const NamedTensor> state) {
  GroupSpec spec;
  spec.name = absl::StrCat("state/", of.name);
  spec.rule = Reduction::kSum;  // of one contribution, which is that one, bit by bit
  spec.policy = Policy::kFirst;
  spec.non_finite = OnBad::kAllow;
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
  {
    // What is being closed is not waited for.
    MutexLock lock(mutex_);
    if (!open_at_.has_value()) return;
  }
  MutexLock giving(giving_mutex_);
  Round round;
  {
    MutexLock lock(mutex_);
    if (!open_at_.has_value() || !epoch_.handover.has_value()) return;
    if (epoch_.handover->donor != self_) return;
    if (FindRound(epoch_.handover->rounds, of_) != open_at_) return;
    const std::optional<Round> listed = FindRound(epoch_.first_rounds, rounds_->plan().id);
    if (!listed.has_value() || listed == given_in_) return;
    round = *listed;
    step_ = static_cast<int64_t>(ToNumber(*open_at_));
  }
  if (given_in_.has_value() && !rounds_->IsOver(rounds_->AllChunks())) {
    timers_.After(kRetry, [weak = weak_from_this()] {
      if (auto self = weak.lock()) self->Give();
    });
    return;
  }
  // What failed is over as well. If nothing can be sent any more, neither can the
  // step that the caller waits for be.
  if (!rounds_->BeginAgain(round, absl::InfinitePast()).ok()) return;
  given_in_ = round;
  for (uint32_t t = 0; t < tensors_.size(); ++t) {
    if (!rounds_->Push(TensorId{t}, tensors_[t], {}).ok()) return;
  }
}

absl::Status StateHandover::Close(absl::Time deadline) {
  {
    MutexLock lock(mutex_);
    open_at_.reset();
  }
  MutexLock giving(giving_mutex_);
  if (!given_in_.has_value()) return absl::OkStatus();
  SYNCGRADS_RETURN_IF_ERROR(rounds_->BeginAgain(*given_in_, deadline));
  given_in_.reset();
  return absl::OkStatus();
}

absl::Status StateHandover::Take(Round step, absl::Time deadline, Session& session) {
  while (true) {
    const Epoch epoch = session.newest_epoch();
    const std::optional<Round> round = FindRound(epoch.first_rounds, rounds_->plan().id);
    const bool listed = epoch.handover.has_value() && round.has_value() &&
                        std::find(epoch.handover->to.begin(), epoch.handover->to.end(), self_) !=
                            epoch.handover->to.end();
    if (!listed) {
      return absl::FailedPreconditionError(
          absl::StrCat("epoch ", epoch.number,
                       " has nobody who brings this worker up to date in "
                       "group \"",
                       rounds_->plan().spec.name, "\""));
    }
    SYNCGRADS_RETURN_IF_ERROR(rounds_->BeginAgain(*round, deadline));
    for (uint32_t t = 0; t < tensors_.size(); ++t) {
      SYNCGRADS_RETURN_IF_ERROR(rounds_->Skip(TensorId{t}, tensors_[t]));
    }
    const absl::Status status =
        AwaitAnswers(*rounds_, rounds_->AllChunks(), deadline - absl::Now(), *session.data_plane());
    if (status.ok()) break;
    SYNCGRADS_RETURN_IF_ERROR(session.status());
    if (absl::IsDeadlineExceeded(status)) return status;
    // The donor is gone, or the round was given up: the next epoch has another.
    SYNCGRADS_RETURN_IF_ERROR(session.AwaitEpoch(epoch.number + 1, deadline).status());
  }
  SYNCGRADS_RETURN_IF_ERROR(rounds_->EndRound());
  if (step_ == static_cast<int64_t>(ToNumber(step))) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the state was that before step ", step_,
                                          ", and this worker begins with step ", ToNumber(step)));
}

}  // namespace syncgrads::client
