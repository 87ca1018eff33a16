#include "client/session/epoch_history.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/planted_bug.h"
#include "common/status_macros.h"

namespace syncgrads::client {

EpochHistory::EpochHistory(std::string coordinator, std::string job)
    : coordinator_(std::move(coordinator)), job_(std::move(job)) {}

void EpochHistory::SetSelf(MemberId self) {
  MutexLock lock(mutex_);
  self_ = self;
}

MemberId EpochHistory::self() const {
  MutexLock lock(mutex_);
  return self_;
}

std::optional<EpochHistory::Added> EpochHistory::Add(const Epoch& epoch) {
  MutexLock lock(mutex_);
  if (!epochs_.empty() && epoch.number <= epochs_.back().number) return std::nullopt;
  const bool first = !first_.has_value();
  if (first) first_ = epoch;
  epochs_.push_back(epoch);
  if (epochs_.size() > kKeptEpochs) epochs_.erase(epochs_.begin());
  rank_ = epoch.RankOf(self_).value_or(rank_);
  changed_.NotifyAll();
  return Added{first, listeners_};
}

void EpochHistory::AddListener(Listener listener) {
  Epoch newest;
  {
    MutexLock lock(mutex_);
    listeners_.push_back(listener);
    newest = epochs_.back();
  }
  listener(newest);
}

void EpochHistory::End(const absl::Status& reason) {
  MutexLock lock(mutex_);
  if (ended_.ok()) ended_ = reason;
  changed_.NotifyAll();
}

Epoch EpochHistory::newest() const {
  MutexLock lock(mutex_);
  return epochs_.empty() ? Epoch() : epochs_.back();
}

absl::StatusOr<Epoch> EpochHistory::Of(GroupId group, Round round) const {
  MutexLock lock(mutex_);
  const Epoch* epoch = FindEpoch(epochs_, group, round);
  if (epoch != nullptr) return *epoch;
  return absl::NotFoundError(absl::StrCat("the epoch of step ", ToNumber(round), " of group ",
                                          ToNumber(group), " is no longer known"));
}

absl::StatusOr<Epoch> EpochHistory::Await(uint64_t number, absl::Time deadline) const {
  MutexLock lock(mutex_);
  while (true) {
    for (const Epoch& epoch : epochs_) {
      if (epoch.number >= number) return epoch;
    }
    if (!ended_.ok()) return ended_;
    if (changed_.WaitUntil(mutex_, deadline)) continue;
    if (!epochs_.empty() && epochs_.back().number >= number) continue;
    return absl::DeadlineExceededError(absl::StrCat("the coordinator at ", coordinator_,
                                                    " has not sent epoch ", number, " of job \"",
                                                    job_, "\""));
  }
}

absl::StatusOr<double> EpochHistory::AwaitRateFactor(uint64_t number, absl::Time deadline) const {
  SYNCGRADS_ASSIGN_OR_RETURN(const Epoch epoch, Await(number, deadline));
  if (IsPlanted(PlantedBug::kRateByArrival)) return newest().learning_rate.factor;
  if (epoch.number == number) return epoch.learning_rate.factor;
  return absl::FailedPreconditionError(absl::StrCat(
      "epoch ", number, " of job \"", job_, "\" is no longer known; the oldest is ", epoch.number));
}

uint32_t EpochHistory::rank() const {
  MutexLock lock(mutex_);
  return rank_;
}

uint32_t EpochHistory::world_size() const {
  MutexLock lock(mutex_);
  return epochs_.empty() ? 0 : static_cast<uint32_t>(epochs_.back().members.size());
}

std::optional<size_t> EpochHistory::WorldSizeOf(uint64_t number) const {
  MutexLock lock(mutex_);
  const auto epoch =
      std::lower_bound(epochs_.begin(), epochs_.end(), number,
                       [](const Epoch& one, uint64_t wanted) { return one.number < wanted; });
  if (epoch == epochs_.end() || epoch->number != number) return std::nullopt;
  return epoch->members.size();
}

bool EpochHistory::IsNewcomerLocked() const {
  if (!first_.has_value() || !first_->handover.has_value()) return false;
  const std::vector<MemberId>& newcomers = first_->handover->to;
  return std::find(newcomers.begin(), newcomers.end(), self_) != newcomers.end();
}

bool EpochHistory::is_newcomer() const {
  MutexLock lock(mutex_);
  return IsNewcomerLocked();
}

std::optional<Round> EpochHistory::FirstRoundOf(GroupId group) const {
  MutexLock lock(mutex_);
  if (!IsNewcomerLocked()) return std::nullopt;
  return FindRound(first_->handover->rounds, group);
}

}  // namespace syncgrads::client
