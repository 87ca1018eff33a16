// Measures how long the steps of a worker are in each phase.

#ifndef SYNCGRADS_WORKER_REPORT_PHASE_CLOCK_H_
#define SYNCGRADS_WORKER_REPORT_PHASE_CLOCK_H_

#include <utility>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/signals/figures.h"

namespace syncgrads {

// At any time, the thread is in one phase or in none. A phase that begins within another one
// interrupts it, so that no time counts twice. Each begin and each end reads the clock once.
//
// Not thread-safe.
class PhaseClock {
 public:
  // A phase: the field of StepTimes that it is added to.
  using Phase = absl::Duration StepTimes::*;

  // `clock` must outlive this object.
  explicit PhaseClock(const Clock& clock = Clock::Real()) : clock_(clock), since_(clock.Now()) {}

  // The thread is in a phase from the construction of this object to its destruction. Objects are
  // destroyed in the reverse order.
  class Scope {
   public:
    Scope(PhaseClock& clock, Phase phase) : clock_(clock), outer_(clock.Enter(phase)) {}
    ~Scope() { clock_.Enter(outer_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    PhaseClock& clock_;
    const Phase outer_;
  };

  // Returns the times since the last call.
  StepTimes Take() {
    Enter(phase_);
    return std::exchange(times_, StepTimes());
  }

 private:
  // Enters a phase, or none if it is null. Returns the one before.
  Phase Enter(Phase phase) {
    const absl::Time now = clock_.Now();
    if (phase_ != nullptr) times_.*phase_ += now - since_;
    since_ = now;
    return std::exchange(phase_, phase);
  }

  const Clock& clock_;
  Phase phase_ = nullptr;
  absl::Time since_;
  StepTimes times_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_REPORT_PHASE_CLOCK_H_
