#include "server/core/jobs/paced.h"

#include <thread>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

// Counts the calls of a computation that takes `cost`.
class PacedTest : public ::testing::Test {
 protected:
  int Get() {
    return *paced_.Get([this] {
      clock_.Advance(cost_);
      return ++calls_;
    });
  }

  FakeClock clock_;
  Paced<int> paced_{clock_};
  absl::Duration cost_ = absl::Milliseconds(10);
  int calls_ = 0;
};

TEST_F(PacedTest, ComputingTakesATenthOfTheTime) {
  EXPECT_EQ(Get(), 1);
  clock_.Advance(absl::Milliseconds(89));
  EXPECT_EQ(Get(), 1);
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_EQ(Get(), 2);
  EXPECT_EQ(Get(), 2);
}

TEST_F(PacedTest, WhatTakesNoTimeIsAlwaysNew) {
  cost_ = absl::ZeroDuration();
  for (int i = 1; i < 10; ++i) EXPECT_EQ(Get(), i);
}

TEST_F(PacedTest, WhileOneThreadComputesOthersGetTheEarlierValue) {
  EXPECT_EQ(Get(), 1);
  clock_.Advance(absl::Seconds(1));
  absl::Notification computing, go_on;
  std::thread slow([&] {
    EXPECT_EQ(*paced_.Get([&] {
      computing.Notify();
      go_on.WaitForNotification();
      clock_.Advance(cost_);
      return 7;
    }),
              7);
  });
  computing.WaitForNotification();
  EXPECT_EQ(Get(), 1);
  go_on.Notify();
  slow.join();
  EXPECT_EQ(Get(), 7);
}

TEST_F(PacedTest, TheFirstValueIsComputedOnce) {
  absl::Notification computing, go_on;
  std::thread slow([&] {
    EXPECT_EQ(*paced_.Get([&] {
      computing.Notify();
      go_on.WaitForNotification();
      clock_.Advance(cost_);
      return 7;
    }),
              7);
  });
  computing.WaitForNotification();
  std::thread other([this] { EXPECT_EQ(Get(), 7); });
  go_on.Notify();
  slow.join();
  other.join();
  EXPECT_EQ(calls_, 0);
}

}  // namespace
}  // namespace syncgrads::server
