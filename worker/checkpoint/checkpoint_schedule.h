// When checkpoints are due.

#ifndef SYNCGRADS_WORKER_CHECKPOINT_CHECKPOINT_SCHEDULE_H_
#define SYNCGRADS_WORKER_CHECKPOINT_CHECKPOINT_SCHEDULE_H_

#include <cstdint>

#include "absl/time/time.h"

namespace syncgrads {

// A pure function of what it is told. Not thread-safe.
class CheckpointSchedule {
 public:
  struct Options {
    // 0: steps do not count.
    uint64_t every_steps = 0;
    // Zero: time does not count.
    absl::Duration every = absl::ZeroDuration();
  };

  CheckpointSchedule(const Options& options, absl::Time now) : options_(options), last_(now) {}

  // Whether there should be a checkpoint after `step`, counted from 1.
  bool IsDue(uint64_t step, absl::Time now) const {
    if (options_.every_steps != 0 && step % options_.every_steps == 0) return true;
    return options_.every > absl::ZeroDuration() && now - last_ >= options_.every;
  }

  // One was due, on whichever worker.
  void Taken(absl::Time now) { last_ = now; }

 private:
  const Options options_;
  absl::Time last_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_CHECKPOINT_CHECKPOINT_SCHEDULE_H_
