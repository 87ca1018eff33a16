// A clock that stops while this process is paused. Leases are measured on it.

#ifndef SYNCGRADS_SERVER_CORE_COORDINATOR_AWAKE_CLOCK_H_
#define SYNCGRADS_SERVER_CORE_COORDINATOR_AWAKE_CLOCK_H_

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace syncgrads::server {

// If the clock was not read for longer than `longest_gap`, the process was paused (SIGSTOP, a
// frozen cgroup, a VM that was moved, an overloaded machine), and the gap does not count. So a
// pause of the process that measures a lease never ends that lease.
//
// The owner must read the clock at least every `longest_gap` / 2 while it measures a time; the
// Coordinator does so in Tick. Thread-safe.
class AwakeClock : public Clock {
 public:
  // `clock` must outlive this object. With an infinite `longest_gap`, all time counts.
  AwakeClock(const Clock& clock, absl::Duration longest_gap)
      : clock_(clock), longest_gap_(longest_gap), last_read_(clock.Now()) {}

  absl::Time Now() const override {
    MutexLock lock(mutex_);
    const absl::Time now = clock_.Now();
    if (now - last_read_ > longest_gap_) paused_ += now - last_read_;
    last_read_ = now;
    return now - paused_;
  }

  // The sum of all pauses, which were not counted.
  absl::Duration paused() const {
    MutexLock lock(mutex_);
    return paused_;
  }

 private:
  const Clock& clock_;
  const absl::Duration longest_gap_;
  mutable Mutex mutex_;
  mutable absl::Time last_read_ ABSL_GUARDED_BY(mutex_);
  mutable absl::Duration paused_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_COORDINATOR_AWAKE_CLOCK_H_
