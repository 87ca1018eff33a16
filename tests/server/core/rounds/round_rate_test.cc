#include "server/core/rounds/round_rate.h"

#include "gtest/gtest.h"

namespace syncgrads::server {
namespace {

class RoundRateTest : public ::testing::Test {
 protected:
  // Closes `rounds` rounds that take this long each.
  void Close(int rounds, absl::Duration each) {
    for (int round = 0; round < rounds; ++round) {
      now_ += each;
      rate_.Add(now_);
    }
  }

  absl::Time now_ = absl::UnixEpoch();
  RoundRate rate_;
};

TEST_F(RoundRateTest, IsZeroBeforeTheSecondRound) {
  EXPECT_EQ(rate_.Read(now_), 0);
  Close(1, absl::Seconds(1));
  EXPECT_EQ(rate_.Read(now_), 0);
  Close(1, absl::Seconds(2));
  EXPECT_DOUBLE_EQ(rate_.Read(now_), 0.5);
}

TEST_F(RoundRateTest, IsThatOfTheLastSeconds) {
  Close(1000, absl::Milliseconds(10));
  EXPECT_NEAR(rate_.Read(now_), 100, 1e-6);
  Close(100, absl::Milliseconds(100));
  EXPECT_NEAR(rate_.Read(now_), 10, 1e-6);
  Close(3, absl::Seconds(4));
  EXPECT_NEAR(rate_.Read(now_), 0.25, 1e-6);
}

TEST_F(RoundRateTest, AnOpenRoundThatTakesLongerLowersIt) {
  Close(100, absl::Milliseconds(100));
  EXPECT_NEAR(rate_.Read(now_ + absl::Milliseconds(99)), 10, 1e-6);
  const double later = rate_.Read(now_ + absl::Seconds(4));
  EXPECT_LT(later, 7);
  EXPECT_GT(later, 1);
}

TEST_F(RoundRateTest, IsZeroIfNoRoundClosesForLong) {
  Close(100, absl::Milliseconds(100));
  EXPECT_GT(rate_.Read(now_ + RoundRate::kWindow), 0);
  EXPECT_EQ(rate_.Read(now_ + RoundRate::kWindow + absl::Milliseconds(1)), 0);
}

}  // namespace
}  // namespace syncgrads::server
