// The part of ClientOptions::autotune that runs in the first steps.

#ifndef SYNCGRADS_CLIENT_TUNING_STEP_TUNER_H_
#define SYNCGRADS_CLIENT_TUNING_STEP_TUNER_H_

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/api/tuned_setting.h"

namespace syncgrads::client {

// Chooses the values of settings, one setting after the other. The values of a setting take turns
// of a few steps, several times, so that other load on the machine affects all values alike. The
// first step of a turn is not counted, because connections may have to be made in it.
//
// Owned by Autotune, whose `mutex_` guards it. Not thread-safe.
class StepTuner {
 public:
  static constexpr int kTurns = 3;
  static constexpr int kStepsOfTurn = 6;

  // Settings with fewer than two different values are ignored.
  explicit StepTuner(std::vector<TunedSetting> settings);

  // What the caller must do before the next step.
  struct Change {
    // Sets the next value to try, or the chosen one.
    std::function<void()> use;
    // If a value has been chosen: a sentence for people that says which, and why. Otherwise empty.
    std::string found;
  };
  // Records that a step has ended. nullopt if nothing has to be done before the next step.
  std::optional<Change> StepEnded(absl::Time now);
  bool done() const { return settings_.empty(); }

 private:
  struct Trial {
    int value;
    std::vector<absl::Duration> steps;
  };

  // Starts the trials of the next setting. Choose and Found end the trials of the current one.
  void Begin();
  Change Choose();
  std::string Found(size_t best) const;

  std::vector<TunedSetting> settings_;  // not yet chosen, the next one last
  std::vector<Trial> trials_;
  size_t current_ = 0;
  int turn_ = 0;
  int step_of_turn_ = 0;
  std::optional<absl::Time> last_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_TUNING_STEP_TUNER_H_
