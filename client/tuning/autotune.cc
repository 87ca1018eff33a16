#include "client/tuning/autotune.h"

namespace syncgrads::client {

void Autotune::Begin(GroupId group, std::vector<TunedSetting> settings) {
  MutexLock lock(mutex_);
  if (tuner_.has_value()) return;
  tuner_.emplace(std::move(settings));
  group_ = group;
}

void Autotune::StepEnded(GroupId group, absl::Time now) {
  std::optional<StepTuner::Change> change;
  {
    MutexLock lock(mutex_);
    if (!tuner_.has_value() || group != group_) return;
    change = tuner_->StepEnded(now);
  }
  if (!change.has_value()) return;
  change->use();
  if (!change->found.empty() && on_found_) on_found_(change->found);
}

}  // namespace syncgrads::client
