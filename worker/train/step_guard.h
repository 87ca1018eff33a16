// What a worker does about steps that go wrong on it: it contributes nothing to them,
// counts them, says so, and gives up when there are too many in a row.

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
#include "common/group.h"

namespace syncgrads {

// Of one worker.
struct SkippedSteps {
  // A part of its gradient, or all, was left out: it was not finite.
  uint64_t non_finite = 0;
  // Its gradient was too long beside those before.
  uint64_t outliers = 0;
  uint64_t out_of_memory = 0;

  uint64_t total() const { return non_finite + outliers + out_of_memory; }
};

// "3 steps: 2 not finite, 1 out of memory".
std::string ToString(const SkippedSteps& skipped);

// A step is begun, perhaps again, something may be noted of it, and it is finished.
//
// Not thread-safe.
class StepGuard {
 public:
  struct Options {
    // A gradient is an outlier if its norm is more than so many times the median of
    // those before. 0: norms are not looked at.
    double outlier_factor = 0;
    OnBad outliers = OnBad::kReject;
    OnBad non_finite = OnBad::kReject;
    // How many norms before are remembered; at least 1.
    size_t history = 64;
    // Steps in a row of which nothing, or not all, was contributed.
    uint32_t max_in_a_row = 10;
    // Is told of each of the first steps that are skipped; may be empty.
    std::function<void(const std::string&)> warn;
  };

  explicit StepGuard(Options options);

  // The whole gradient has to be there before any of it is pushed.
  bool watches_norms() const { return options_.outlier_factor > 0; }

  // Step `step` begins, or begins again.
  void Begin(uint64_t step);

  // Whether a gradient of this norm is contributed. Until there are a few norms to
  // compare it with, every finite one is.
  //
  // Errors:
  //   InvalidArgument  it is not, and policy says that this is an error
  absl::StatusOr<bool> Admit(double norm);
  // Nothing was contributed, or not all, because there was no memory `to_do` something.
  void NoteOutOfMemory(absl::string_view to_do);
  // Servers have left out this worker's gradient of `tensors` tensors, of which
  // `first` is one.
  void NoteLeftOut(absl::string_view first, size_t tensors);

  // The step has been made.
  //
  // Errors:
  //   ResourceExhausted  too many in a row for want of memory
  //   InvalidArgument    too many in a row for other reasons
  absl::Status Finish();

  const SkippedSteps& skipped() const { return skipped_; }

 private:
  // Counts for one of `skipped_`.
  struct Note {
    uint64_t SkippedSteps::*reason;
    std::string what;
  };

  double MedianNorm() const;
  absl::StatusOr<bool> Refuse(OnBad policy, Note note);

  const Options options_;
  uint64_t step_ = 0;
  std::optional<Note> note_;    // of this step
  std::optional<double> norm_;  // of this step, if it was contributed
  std::deque<double> norms_;    // of those before
  SkippedSteps skipped_;
  uint32_t in_a_row_ = 0;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_TRAIN_STEP_GUARD_H_
