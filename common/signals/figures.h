// What a worker reports about its training, for people to read: its step, its loss, and where its
// time goes. Each field has the meaning that proto/figures.proto gives for the field of the same
// name; common/contract/figures.h converts them.

#ifndef SYNCGRADS_COMMON_SIGNALS_FIGURES_H_
#define SYNCGRADS_COMMON_SIGNALS_FIGURES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace syncgrads {

// Limits of CheckFigures, in bytes of UTF-8 and in scores.
inline constexpr size_t kMaxDeviceBytes = 64;
inline constexpr size_t kMaxScoreNameBytes = 32;
inline constexpr size_t kMaxScores = 8;

// How long the steps of a worker were in each phase. Phases do not overlap.
struct StepTimes {
  // Waiting for the batch to be read.
  absl::Duration read = absl::ZeroDuration();
  absl::Duration compute = absl::ZeroDuration();
  // Passing gradients to the client library.
  absl::Duration push = absl::ZeroDuration();
  // Waiting for results from the servers, and so for the other workers.
  absl::Duration wait = absl::ZeroDuration();
  // Updating the parameters with the results.
  absl::Duration apply = absl::ZeroDuration();

  StepTimes& operator+=(const StepTimes& more) {
    read += more.read;
    compute += more.compute;
    push += more.push;
    wait += more.wait;
    apply += more.apply;
    return *this;
  }
  friend bool operator==(const StepTimes&, const StepTimes&) = default;
};

// One result of an evaluation, for example "accuracy" and 0.97.
struct Score {
  std::string name;
  double value = 0;

  friend bool operator==(const Score&, const Score&) = default;
};

// An evaluation of the model after `step`, on rows that it is not trained on.
struct Validation {
  uint64_t step = 0;
  std::vector<Score> scores;

  friend bool operator==(const Validation&, const Validation&) = default;
};

struct TrainingFigures {
  // The number of the last step, from 1.
  uint64_t step = 0;
  // The loss of the worker's last batch, and the learning rate of the last step.
  std::optional<double> loss;
  std::optional<double> learning_rate;
  // "cpu", or the name of the accelerator; empty if it is not known.
  std::string device;
  // Since the worker began to train.
  StepTimes times;
  std::optional<Validation> validation;

  friend bool operator==(const TrainingFigures&, const TrainingFigures&) = default;
};

// Checks what a worker wants to report, or what a server has received from it.
//
// Errors:
//   InvalidArgument  a number is not finite, a time is negative, a text is too long, empty where it
//                    must not be, or not printable, or there are too many scores; the message
//                    names the field and the value
absl::Status CheckFigures(const TrainingFigures& figures);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_SIGNALS_FIGURES_H_
