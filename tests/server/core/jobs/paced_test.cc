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

  // Lets another thread compute 7. Returns when it has begun.
  void BeginSlowly() {
    slow_ = std::thread([this] {
      const auto compute = [this] {
        computing_.Notify();
        go_on_.WaitForNotification();
        clock_.Advance(cost_);
        return 7;
      };
      EXPECT_EQ(*paced_.Get(compute), 7);
    });
    computing_.WaitForNotification();
  }
  void EndSlowly() {
    go_on_.Notify();
    slow_.join();
  }

  FakeClock clock_;
  Paced<int> paced_{clock_};
  absl::Duration cost_ = absl::Milliseconds(10);
  int calls_ = 0;
  absl::Notification computing_, go_on_;
  std::thread slow_;
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
  BeginSlowly();
  EXPECT_EQ(Get(), 1);
  EndSlowly();
  EXPECT_EQ(Get(), 7);
}

TEST_F(PacedTest, TheFirstValueIsComputedOnce) {
  BeginSlowly();
  std::thread other([this] { EXPECT_EQ(Get(), 7); });
  EndSlowly();
  other.join();
  EXPECT_EQ(calls_, 0);
}

}  // namespace
}  // namespace syncgrads::server
