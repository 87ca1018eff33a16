// Memory of groups that is allocated in the background.

#include "server/core/jobs/group_memory.h"

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads::server {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class GroupMemoryTest : public testing::Test {
 protected:
  static GroupPreparation Ask(uint64_t key) { return {"iris", Generation{1}, key, nullptr}; }

  // Waits until there are `count` reports in all, and returns them.
  std::vector<GroupPrepared> Reports(size_t count) {
    MutexLock lock(mutex_);
    while (reports_.size() < count) changed_.WaitUntil(mutex_, absl::InfiniteFuture());
    return reports_;
  }
  // The size from which on memory is allocated in the background.
  static constexpr uint64_t kWanted = kMinBackgroundBytes;

  std::vector<uint64_t> Discarded(size_t count) {
    MutexLock lock(mutex_);
    while (discarded_.size() < count) changed_.WaitUntil(mutex_, absl::InfiniteFuture());
    return discarded_;
  }
  // Returns a function that makes an empty result. It reports progress once and then blocks until
  // Let is called.
  GroupMemory::Make Held() {
    return [this](const AllocationProgress& progress) {
      progress(1);
      MutexLock lock(mutex_);
      while (!let_) changed_.WaitUntil(mutex_, absl::InfiniteFuture());
      return absl::StatusOr<GroupResults>(GroupResults());
    };
  }
  void Let() {
    MutexLock lock(mutex_);
    let_ = true;
    changed_.NotifyAll();
  }

  Mutex mutex_;
  CondVar changed_;
  bool let_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<GroupPrepared> reports_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> discarded_ ABSL_GUARDED_BY(mutex_);
  GroupMemory memory_{[this](const GroupPrepared& report) {
                        MutexLock lock(mutex_);
                        reports_.push_back(report);
                        changed_.NotifyAll();
                      },
                      [this](uint64_t key) {
                        MutexLock lock(mutex_);
                        discarded_.push_back(key);
                        changed_.NotifyAll();
                      }};
};

TEST_F(GroupMemoryTest, ReportsHowFarItIsAndTheEnd) {
  memory_.Prepare(Ask(7), kWanted, Held());
  EXPECT_EQ(Reports(1)[0].made, 1u);
  EXPECT_FALSE(Reports(1)[0].done);
  EXPECT_FALSE(memory_.Take(7).has_value()) << "it is not done";
  Let();
  const GroupPrepared end = Reports(2)[1];
  EXPECT_TRUE(end.done);
  EXPECT_EQ(end.made, kWanted);
  EXPECT_THAT(end.error, IsOk());
  EXPECT_TRUE(memory_.Take(7).has_value());
  EXPECT_FALSE(memory_.Take(7).has_value()) << "it is taken once";
}

TEST_F(GroupMemoryTest, ARepeatedRequestReportsAgainAndMakesNothing) {
  Let();
  memory_.Prepare(Ask(7), kWanted, Held());
  Reports(2);
  memory_.Prepare(Ask(7), kWanted, [](const AllocationProgress&) -> absl::StatusOr<GroupResults> {
    ADD_FAILURE() << "it is made";
    return GroupResults();
  });
  EXPECT_TRUE(Reports(3)[2].done);
}

TEST_F(GroupMemoryTest, AFailureIsReported) {
  memory_.Prepare(Ask(7), kWanted, [](const AllocationProgress&) -> absl::StatusOr<GroupResults> {
    return absl::ResourceExhaustedError("no room");
  });
  const GroupPrepared end = Reports(1)[0];
  EXPECT_TRUE(end.done);
  ExpectError(end.error, absl::StatusCode::kResourceExhausted, {"no room"});
  EXPECT_FALSE(memory_.Take(7).has_value());
}

TEST_F(GroupMemoryTest, SmallMemoryIsMadeBeforeTheRequestReturns) {
  const auto caller = std::this_thread::get_id();
  memory_.Prepare(Ask(7), kWanted - 1, [&](const AllocationProgress&) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    return absl::StatusOr<GroupResults>(GroupResults());
  });
  EXPECT_TRUE(memory_.Take(7).has_value());
  EXPECT_TRUE(Reports(1)[0].done);
}

TEST_F(GroupMemoryTest, WhatIsForgottenIsDiscardedAlsoWhileItIsMade) {
  memory_.Prepare(Ask(7), kWanted, Held());
  Reports(1);
  memory_.Forget(7);
  Let();
  EXPECT_THAT(Discarded(1), ElementsAre(7u));
  memory_.Prepare(Ask(8), kWanted, Held());
  Reports(3);
  memory_.ForgetJob("another", Generation{1});
  memory_.ForgetJob("iris", Generation{1});
  EXPECT_THAT(Discarded(2), ElementsAre(7u, 8u));
  EXPECT_FALSE(memory_.Take(8).has_value());
}

}  // namespace
}  // namespace syncgrads::server
