#include "server/core/coordinator/awake_clock.h"

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

TEST(AwakeClockTest, CountsTheTimeInWhichItIsReadOften) {
  FakeClock real;
  const AwakeClock clock(real, absl::Milliseconds(500));
  const absl::Time start = clock.Now();
  for (int i = 0; i < 10; ++i) {
    real.Advance(absl::Milliseconds(500));
    EXPECT_EQ(clock.Now() - start, (i + 1) * absl::Milliseconds(500));
  }
  EXPECT_EQ(clock.paused(), absl::ZeroDuration());
}

TEST(AwakeClockTest, StandsStillInAPause) {
  FakeClock real;
  const AwakeClock clock(real, absl::Milliseconds(500));
  real.Advance(absl::Milliseconds(200));
  const absl::Time before = clock.Now();
  real.Advance(absl::Hours(24));
  EXPECT_EQ(clock.Now(), before);
  EXPECT_EQ(clock.paused(), absl::Hours(24));
  real.Advance(absl::Milliseconds(300));
  EXPECT_EQ(clock.Now() - before, absl::Milliseconds(300));
}

}  // namespace
}  // namespace syncgrads::server
