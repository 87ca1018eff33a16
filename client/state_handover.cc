#include "client/state_handover.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/session.h"
#include "client/wait.h"
#include "common/status_macros.h"

namespace syncgrads::client {
namespace {

// Until an earlier round of the handover, which a newer epoch overtook, is over and
// its buffers are free.
constexpr absl::Duration kRetry = absl::Milliseconds(50);

}  // namespace

GroupSpec StateSpec(const GroupSpec& of, absl::Span<const NamedTensor> state) {
  GroupSpec spec;
  spec.name = absl::StrCat("state/", of.name);
  spec.rule = Reduction::kSum;  // of one contribution, which is that one, bit by bit
  spec.policy = First{};
  spec.non_finite = OnBad::kAllow;
  // A donor's state that comes late is not the one that a newer epoch asks for.
  spec.one_epoch = true;
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
  Given giving_now;
  {
    MutexLock lock(mutex_);
    if (!open_at_.has_value() || !epoch_.handover.has_value()) return;
    if (epoch_.handover->donor != self_) return;
    if (FindRound(epoch_.handover->rounds, of_) != open_at_) return;
    const std::optional<Round> listed = FindRound(epoch_.first_rounds, rounds_->plan().id);
    if (!listed.has_value()) return;
    giving_now = {*listed, epoch_.number};
    if (giving_now == given_) return;
    step_ = static_cast<int64_t>(ToNumber(*open_at_));
  }
  if (given_.has_value() && !rounds_->IsOver(rounds_->AllChunks())) return GiveLater();
  // What failed is over as well, once the transport has let go of it. If nothing can
  // be sent any more, neither can the step that the caller waits for be.
  const absl::Status begun = rounds_->BeginAgain(giving_now.round, absl::InfinitePast());
  if (absl::IsDeadlineExceeded(begun)) return GiveLater();
  if (!begun.ok()) return;
  rounds_->PinEpoch(giving_now.epoch);
  given_ = giving_now;
  for (uint32_t t = 0; t < tensors_.size(); ++t) {
    if (!rounds_->Push(TensorId{t}, tensors_[t], {}).ok()) return;
  }
}

void StateHandover::GiveLater() {
  timers_.After(kRetry, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->Give();
  });
}

absl::Status StateHandover::Close(absl::Time deadline) {
  {
    MutexLock lock(mutex_);
    open_at_.reset();
  }
  MutexLock giving(giving_mutex_);
  if (!given_.has_value()) return absl::OkStatus();
  SYNCGRADS_RETURN_IF_ERROR(rounds_->BeginAgain(given_->round, deadline));
  given_.reset();
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
    const absl::Status status = AwaitAnswers(*rounds_, rounds_->AllChunks(),
                                             deadline - timers_.Now(), *session.data_plane());
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
