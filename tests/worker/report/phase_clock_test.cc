// Tests how the time of a worker's steps is divided among their phases.

#include "worker/report/phase_clock.h"

#include "gtest/gtest.h"

namespace syncgrads {
namespace {

// A clock that advances by a second each time that it is read.
class CountingClock : public Clock {
 public:
  absl::Time Now() const override { return absl::UnixEpoch() + absl::Seconds(++reads); }
  mutable int reads = 0;
};

TEST(PhaseClockTest, APhaseWithinAnotherInterruptsIt) {
  const CountingClock clock;
  PhaseClock phases(clock);
  {
    const PhaseClock::Scope computes(phases, &StepTimes::compute);
    { const PhaseClock::Scope reads(phases, &StepTimes::read); }
    {
      const PhaseClock::Scope waits(phases, &StepTimes::wait);
      const PhaseClock::Scope applies(phases, &StepTimes::apply);
    }
  }
  { const PhaseClock::Scope pushes(phases, &StepTimes::push); }
  const StepTimes times = phases.Take();
  EXPECT_EQ(times.compute, absl::Seconds(3));
  EXPECT_EQ(times.read, absl::Seconds(1));
  EXPECT_EQ(times.wait, absl::Seconds(2));
  EXPECT_EQ(times.apply, absl::Seconds(1));
  EXPECT_EQ(times.push, absl::Seconds(1));
  // One read for the construction and one for Take, and two for each of the five phases.
  EXPECT_EQ(clock.reads, 12);
}

TEST(PhaseClockTest, TimesAreThoseSinceTheLastCallAlsoOfAPhaseThatGoesOn) {
  const CountingClock clock;
  PhaseClock phases(clock);
  const PhaseClock::Scope computes(phases, &StepTimes::compute);
  EXPECT_EQ(phases.Take().compute, absl::Seconds(1));
  EXPECT_EQ(phases.Take().compute, absl::Seconds(1));
  EXPECT_EQ(phases.Take(), StepTimes{.compute = absl::Seconds(1)});
}

}  // namespace
}  // namespace syncgrads
