// The tuning of a client's settings in the first steps (ClientOptions::autotune).

#ifndef SYNCGRADS_CLIENT_TUNING_AUTOTUNE_H_
#define SYNCGRADS_CLIENT_TUNING_AUTOTUNE_H_

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "client/api/tuned_setting.h"
#include "client/tuning/step_tuner.h"
#include "common/ids.h"
#include "common/mutex.h"

namespace syncgrads::client {

// Uses the steps of the group that was registered first. Settings that are tried concurrently in
// the steps of two groups would influence each other's durations.
//
// Owned by Session. Begin is called on threads of callers that register a group; StepEnded on the
// thread of the caller that ended a step. Thread-safe. Settings and `on_found` are called without
// `mutex_`.
class Autotune {
 public:
  // `on_found` is called with a sentence for people when a value has been chosen. It may be null.
  explicit Autotune(std::function<void(const std::string&)> on_found)
      : on_found_(std::move(on_found)) {}

  // Begins to try `settings` in the steps of `group`. Only the first call has an effect.
  void Begin(GroupId group, std::vector<TunedSetting> settings);

  // Records that a step of `group` has ended at `now`, and sets what the next step uses. Ignored if
  // Begin has not been called, or was called with another group.
  void StepEnded(GroupId group, absl::Time now);

 private:
  const std::function<void(const std::string&)> on_found_;

  Mutex mutex_;
  std::optional<StepTuner> tuner_ ABSL_GUARDED_BY(mutex_);
  GroupId group_ ABSL_GUARDED_BY(mutex_){};
};

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_TUNING_AUTOTUNE_H_
