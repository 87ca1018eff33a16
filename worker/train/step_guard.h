// Decides what a worker does in a step in which its gradient is unusable: it contributes
// nothing, counts the step, warns, and gives up after too many such steps in a row.

#ifndef SYNCGRADS_WORKER_TRAIN_STEP_GUARD_H_
#define SYNCGRADS_WORKER_TRAIN_STEP_GUARD_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/group/group.h"

namespace syncgrads {

// The steps to which one worker did not contribute, or not completely, by reason.
struct SkippedSteps {
  // All or a part of the gradient was left out because it was not finite.
  uint64_t non_finite = 0;
  // The norm of the gradient was too large, compared with those before.
  uint64_t outliers = 0;
  uint64_t out_of_memory = 0;

  uint64_t total() const { return non_finite + outliers + out_of_memory; }
};

// "3 steps: 2 not finite, 1 out of memory".
std::string ToString(const SkippedSteps& skipped);

// For each step the trainer calls Begin, then any of Admit and the Note functions, then
// Finish. It may call Begin again for the same step. Not thread-safe.
class StepGuard {
 public:
  struct Options {
    // A gradient is an outlier if its norm exceeds this factor times the median of the
    // norms before. 0: norms are not checked.
    double outlier_factor = 0;
    OnBad outliers = OnBad::kReject;
    OnBad non_finite = OnBad::kReject;
    // The number of earlier norms in the median; at least 1.
    size_t history = 64;
    // The number of consecutive steps, to which nothing or not all was contributed, that
    // is still accepted.
    uint32_t max_in_a_row = 10;
    // Called with a message for each of the first such steps; may be empty.
    std::function<void(const std::string&)> warn;
  };

  explicit StepGuard(Options options);

  // Whether Admit has to see the whole gradient before any of it is pushed.
  bool watches_norms() const { return options_.outlier_factor > 0; }

  // Starts step `step`, or starts it again.
  void Begin(uint64_t step);

  // Returns whether to contribute a gradient with this norm. While there are too few
  // earlier norms to compare with, every finite norm is accepted.
  //
  // Errors:
  //   InvalidArgument  the gradient is unusable, and the policy for this is kReject
  absl::StatusOr<bool> Admit(double norm);
  // Notes that nothing, or not all, was contributed, for lack of memory. `to_do` says
  // what it was for: "to compute its gradient".
  void NoteOutOfMemory(absl::string_view to_do);
  // Notes that the servers have left out this worker's gradient of `tensors` tensors.
  // `first` is the name of one of them.
  void NoteLeftOut(absl::string_view first, size_t tensors);

  // Ends the step and counts what was noted.
  //
  // Errors:
  //   ResourceExhausted  too many steps in a row were skipped, the last one for lack of memory
  //   InvalidArgument    too many steps in a row were skipped, the last one for other reasons
  absl::Status Finish();

  const SkippedSteps& skipped() const { return skipped_; }

 private:
  // What was noted in a step: the counter in `skipped_`, and the message.
  struct Note {
    uint64_t SkippedSteps::*reason;
    std::string what;
  };

  double MedianNorm() const;
  absl::StatusOr<bool> Refuse(OnBad policy, Note note);

  const Options options_;
  uint64_t step_ = 0;
  std::optional<Note> note_;    // of this step
  std::optional<double> norm_;  // of this step, if it is contributed
  std::deque<double> norms_;    // of the steps before
  SkippedSteps skipped_;
  uint32_t in_a_row_ = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_STEP_GUARD_H_
