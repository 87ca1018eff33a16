#include "worker/base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace syncgrads {
namespace {

TEST(ThreadPoolTest, CallsEachPartOnce) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int parts : {0, 1, 2, 7, ThreadPool::kMostParts}) {
      std::vector<int> calls(parts);
      std::atomic<bool> has_other_thread{false};
      pool.Run(parts, [&](int thread, int part) {
        ++calls[part];
        if (thread < 0 || thread >= threads) has_other_thread = true;
      });
      EXPECT_EQ(calls, std::vector<int>(parts, 1)) << threads << " threads";
      EXPECT_FALSE(has_other_thread);
    }
  }
}

// Many loops without a pause between them, in which threads are late: a thread must not take a part
// of a loop that it does not know, nor twice.
TEST(ThreadPoolTest, LoopsFollowEachOther) {
  ThreadPool pool(4);
  std::vector<int> values(9);
  for (int loop = 0; loop < 20'000; ++loop) {
    const int parts = 2 + loop % 8;
    pool.Run(parts, [&values, loop](int, int part) { values[part] += loop; });
    for (int part = 0; part < 9; ++part) {
      ASSERT_EQ(values[part], part < parts ? loop : 0);
      values[part] = 0;
    }
  }
}

// Each of the threads stands for one that has lost its processor.
TEST(ThreadPoolTest, TheOthersTakeThePartsOfAThreadThatIsLate) {
  ThreadPool pool(3);
  constexpr int kParts = 12;
  for (const int late : {0, 1, 2}) {
    std::atomic<int> others{0};
    std::atomic<bool> is_late{false};
    pool.Run(kParts, [&](int thread, int) {
      if (thread == late && !is_late.exchange(true)) {
        while (others < kParts - 1) std::this_thread::yield();
        return;
      }
      // So that the thread takes a part.
      while (!is_late) std::this_thread::yield();
      ++others;
    });
    EXPECT_EQ(others, kParts - 1);
  }
}

// Keeps the calling thread on these processors.
void StayOn(const cpu_set_t& processors) {
  ASSERT_EQ(sched_setaffinity(0, sizeof processors, &processors), 0);
}

TEST(ThreadPoolTest, AHelperLeavesTheProcessorOfTheCaller) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  if (CPU_COUNT(&allowed) < 2) GTEST_SKIP() << "one processor";
  ThreadPool pool(2);
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  StayOn(one);
  // Each of the threads takes one of two parts.
  const auto run = [&pool](absl::FunctionRef<void()> of_helper) {
    std::atomic<int> begun{0};
    pool.Run(2, [&](int thread, int) {
      ++begun;
      while (begun < 2) std::this_thread::yield();
      if (thread == 1) of_helper();
    });
  };
  // On a machine with other work the system may move a thread at any time.
  int turns_elsewhere = 0;
  for (int turn = 0; turn < 20; ++turn) {
    run([&] {
      StayOn(one);
      StayOn(allowed);
    });
    int processor = -1;
    run([&] { processor = sched_getcpu(); });
    if (!CPU_ISSET(processor, &one)) ++turns_elsewhere;
    run([&] {
      cpu_set_t now;
      ASSERT_EQ(sched_getaffinity(0, sizeof now, &now), 0);
      EXPECT_TRUE(CPU_EQUAL(&now, &allowed));
    });
  }
  EXPECT_GT(turns_elsewhere, 0);
  StayOn(allowed);
}

TEST(ThreadPoolTest, AnExceptionIsRethrownWhenTheLoopHasEnded) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    std::atomic<int> calls{0};
    try {
      pool.Run(6, [&](int, int part) {
        ++calls;
        if (part == 4) throw std::runtime_error("part 4");
      });
      ADD_FAILURE() << "no exception";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(std::string(error.what()), "part 4");
    }
    // On several threads, the other parts are called too.
    const int before = threads == 1 ? 5 : 6;
    EXPECT_EQ(calls, before);
    pool.Run(6, [&](int, int) { ++calls; });
    EXPECT_EQ(calls, before + 6);
  }
}

}  // namespace
}  // namespace syncgrads
