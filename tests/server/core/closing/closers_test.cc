#include "server/core/closing/closers.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::server {
namespace {

// Blocks waiters until Arrive has been called `count` times. Thread-safe.
class Latch {
 public:
  explicit Latch(int count) : count_(count) {}
  void Arrive() {
    MutexLock lock(mutex_);
    if (--count_ == 0) changed_.NotifyAll();
  }
  bool Wait() {
    MutexLock lock(mutex_);
    const absl::Time deadline = MonotonicNow() + absl::Minutes(1);
    while (count_ > 0) {
      if (!changed_.WaitUntil(mutex_, deadline)) return false;
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int count_ ABSL_GUARDED_BY(mutex_);
};

TEST(ClosersTest, WithoutThreadsTheCallerCloses) {
  Closers closers(0);
  std::thread::id ran;
  closers.Run("a", [&ran] { ran = std::this_thread::get_id(); });
  EXPECT_EQ(ran, std::this_thread::get_id());
}

TEST(ClosersTest, AsManyCloseAtOnceAsThereAreThreads) {
  Latch together(3);
  bool all_there[3] = {};
  Latch done(3);
  Closers closers(3);
  for (bool& there : all_there) {
    closers.Run("a", [&] {
      together.Arrive();
      there = together.Wait();
      done.Arrive();
    });
  }
  EXPECT_TRUE(done.Wait());
  for (const bool there : all_there) EXPECT_TRUE(there);
}

TEST(ClosersTest, JobsTakeTurnsAndEachKeepsItsOrder) {
  Latch begun(1);
  Latch go_on(1);
  Latch done(7);
  std::vector<std::string> closed;  // by the only closer
  Closers closers(1);
  closers.Run("busy", [&] {
    begun.Arrive();
    go_on.Wait();
  });
  ASSERT_TRUE(begun.Wait());
  for (const char* one : {"a1", "a2", "a3", "a4", "b1", "b2", "c1"}) {
    closers.Run(std::string(one, 1), [&, one] {
      closed.emplace_back(one);
      done.Arrive();
    });
  }
  go_on.Arrive();
  ASSERT_TRUE(done.Wait());
  EXPECT_THAT(closed, ::testing::ElementsAre("a1", "b1", "c1", "a2", "b2", "a3", "a4"));
}

TEST(ClosersTest, EndsWhenWhatRunsHasEnded) {
  Latch begun(1);
  Latch go_on(1);
  bool closed = false;
  std::thread opener;
  {
    Closers closers(1);
    closers.Run("a", [&] {
      begun.Arrive();
      closed = go_on.Wait();
    });
    ASSERT_TRUE(begun.Wait());
    opener = std::thread([&go_on] { go_on.Arrive(); });
  }
  EXPECT_TRUE(closed);
  opener.join();
}

TEST(ClosersTest, DropsWhatIsQueuedAndWhatComesAfterStop) {
  Latch begun(1);
  Latch go_on(1);
  auto of_the_job = std::make_shared<int>(0);
  Closers closers(1);
  closers.Run("a", [&] {
    begun.Arrive();
    go_on.Wait();
  });
  ASSERT_TRUE(begun.Wait());
  bool ran = false;
  closers.Run("a", [&ran, of_the_job] { ran = true; });
  std::thread stopping([&closers] { closers.Stop(); });
  // Stop drops the queue first and then waits for the closure that is running.
  EXPECT_TRUE(syncgrads::testing::WaitUntil([&] { return of_the_job.use_count() == 1; }));
  go_on.Arrive();
  stopping.join();
  closers.Run("a", [&ran] { ran = true; });
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace syncgrads::server
