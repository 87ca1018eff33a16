#include "client/tuning/step_tuner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/tuning/tuner.h"

namespace syncgrads::client {

StepTuner::StepTuner(std::vector<TunedSetting> settings) : settings_(std::move(settings)) {
  for (TunedSetting& setting : settings_) {
    std::vector<int> once;
    for (const int value : setting.values) {
      if (std::find(once.begin(), once.end(), value) == once.end()) once.push_back(value);
    }
    setting.values = std::move(once);
  }
  settings_.erase(
      std::remove_if(settings_.begin(), settings_.end(),
                     [](const TunedSetting& setting) { return setting.values.size() < 2; }),
      settings_.end());
  std::reverse(settings_.begin(), settings_.end());
  Begin();
}

void StepTuner::Begin() {
  trials_.clear();
  current_ = 0;
  turn_ = 0;
  step_of_turn_ = 0;
  if (done()) return;
  for (const int value : settings_.back().values) trials_.push_back({value, {}});
}

std::optional<StepTuner::Change> StepTuner::StepEnded(absl::Time now) {
  if (done()) return std::nullopt;
  if (last_.has_value() && step_of_turn_ > 0) trials_[current_].steps.push_back(now - *last_);
  last_ = now;
  if (++step_of_turn_ < kStepsOfTurn) return std::nullopt;
  step_of_turn_ = 0;
  if (++current_ == trials_.size()) {
    current_ = 0;
    if (++turn_ == kTurns) return Choose();
  }
  return Change{[use = settings_.back().use, value = trials_[current_].value] { use(value); }, ""};
}

StepTuner::Change StepTuner::Choose() {
  size_t best = 0;
  for (size_t i = 1; i < trials_.size(); ++i) {
    if (IsBetter(Median(trials_[i].steps), Median(trials_[best].steps))) best = i;
  }
  Change change{[use = settings_.back().use, value = trials_[best].value] { use(value); },
                Found(best)};
  settings_.pop_back();
  Begin();
  return change;
}

std::string StepTuner::Found(size_t best) const {
  const TunedSetting& setting = settings_.back();
  const auto with = [&setting](const Trial& trial) {
    return absl::StrCat(trial.value, setting.unit);
  };
  const Trial& usual = trials_.front();
  const std::string usually =
      absl::StrCat(with(usual), ", the default, takes ", Milliseconds(Median(usual.steps)));
  if (best == 0) {
    return absl::StrCat(setting.name, ": a step with ", usually, ", and no other was faster");
  }
  return absl::StrCat(setting.name, ": a step with ", with(trials_[best]), " takes ",
                      Milliseconds(Median(trials_[best].steps)), "; with ", usually);
}

}  // namespace syncgrads::client
