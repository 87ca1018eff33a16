#include "worker/run/stop_signal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "absl/time/clock.h"

namespace syncgrads {
namespace {

// Signals arrive asynchronously: waits until `condition` is true. Returns false if that takes
// longer than a generous limit.
template <typename Condition>
bool Eventually(Condition condition) {
  const absl::Time deadline = absl::Now() + absl::Minutes(2);
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

TEST(StopSignalTest, ASignalIsARequestAndThenTheLastResortOfWhoeverHasOne) {
  StopSignal stop;
  EXPECT_FALSE(stop.requested());
  std::atomic<int> calls{0};
  std::atomic<int> others{0};
  std::atomic<int> taken_back{0};
  {
    const StopSignal::LastResort first(
        stop, [&] { ++calls; }, absl::ZeroDuration());
    const StopSignal::LastResort second(
        stop, [&] { ++others; }, absl::ZeroDuration());
    {
      const StopSignal::LastResort gone(
          stop, [&] { ++taken_back; }, absl::ZeroDuration());
    }
    kill(getpid(), SIGTERM);
    EXPECT_TRUE(Eventually([&] { return stop.requested(); }));
    EXPECT_TRUE(Eventually([&] { return calls == 1 && others == 1; }));
  }
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(others, 1);
  EXPECT_EQ(taken_back, 0);
}

TEST(StopSignalTest, SchedulersMaySendAnotherSignal) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    StopSignal stop;
    kill(getpid(), signal);
    EXPECT_TRUE(Eventually([&] { return stop.requested(); })) << signal;
  }
}

TEST(StopSignalTest, WithoutASignalNothingHappens) {
  std::atomic<int> calls{0};
  {
    StopSignal stop;
    const StopSignal::LastResort last_resort(
        stop, [&] { ++calls; }, absl::ZeroDuration());
  }
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace syncgrads
