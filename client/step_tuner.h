// What ClientOptions::autotune does in the first steps.

#ifndef SYNCGRADS_CLIENT_STEP_TUNER_H_
#define SYNCGRADS_CLIENT_STEP_TUNER_H_

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/tuned_setting.h"

namespace syncgrads::client {

// Chooses values of settings, one setting after the other: each value takes its turn for
// a few steps, several times, so that what else the machine does hits all alike. The
// first step of a turn, which may have connections to make, is not counted.
//
// Not thread-safe.
class StepTuner {
 public:
  static constexpr int kTurns = 3;
  static constexpr int kStepsOfTurn = 6;

  // Settings of which there is one value are left alone.
  explicit StepTuner(std::vector<TunedSetting> settings);

  // What is to be done before the next step.
  struct Change {
    // Uses the next value, or the one that has been chosen.
    std::function<void()> use;
    // Where a value has been chosen: which, and why, in words.
    std::string found;
  };
  // A step has ended.
  std::optional<Change> StepEnded(absl::Time now);
  bool done() const { return settings_.empty(); }

 private:
  struct Trial {
    int value;
    std::vector<absl::Duration> steps;
  };

  // Of the setting that is being tried.
  void Begin();
  Change Choose();
  std::string Found(size_t best) const;

  std::vector<TunedSetting> settings_;  // those not yet chosen, the last one first
  std::vector<Trial> trials_;
  size_t current_ = 0;
  int turn_ = 0;
  int step_of_turn_ = 0;
  std::optional<absl::Time> last_;
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_STEP_TUNER_H_
