// Decides when a checkpoint is due.

#ifndef SYNCGRADS_WORKER_CHECKPOINT_CHECKPOINT_SCHEDULE_H_
#define SYNCGRADS_WORKER_CHECKPOINT_CHECKPOINT_SCHEDULE_H_

#include <cstdint>

#include "absl/time/time.h"

namespace syncgrads {

// Decides by step count and by time. It does not read a clock: results depend only on the
// arguments and on the last call of Taken. Each Trainer owns one. Not thread-safe.
class CheckpointSchedule {
 public:
  struct Options {
    // A checkpoint is due after every multiple of this many steps. 0: steps are ignored.
    uint64_t every_steps = 0;
    // A checkpoint is due when this much time has passed since the last one. Zero: time
    // is ignored.
    absl::Duration every = absl::ZeroDuration();
  };

  CheckpointSchedule(const Options& options, absl::Time now) : options_(options), last_(now) {}

  // Whether a checkpoint is due after `step`, which counts from 1.
  bool IsDue(uint64_t step, absl::Time now) const {
    if (options_.every_steps != 0 && step % options_.every_steps == 0) return true;
    return options_.every > absl::ZeroDuration() && now - last_ >= options_.every;
  }

  // Starts the interval `every` again. Called when a checkpoint was due on any worker.
  void Taken(absl::Time now) { last_ = now; }

 private:
  const Options options_;
  absl::Time last_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_CHECKPOINT_CHECKPOINT_SCHEDULE_H_
