#include "common/short_slices.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <thread>

#include "gtest/gtest.h"

namespace syncgrads {
namespace {

// The kernel's sched_attr. Its header cannot be included beside <sched.h>.
struct Attributes {
  uint32_t size;
  uint32_t policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t slice;
  uint64_t others[3];
};

Attributes OfThisThread() {
  Attributes attributes = {};
  EXPECT_EQ(syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0), 0);
  return attributes;
}

TEST(ShortSlicesTest, OnlyTheSliceChanges) {
  std::thread([] {
    // A user may only be nicer than before.
    const int nice = std::min(OfThisThread().nice + 1, 19);
    ASSERT_EQ(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), nice), 0);
    const Attributes before = OfThisThread();
    AskForShortSlices();
    const Attributes after = OfThisThread();
    EXPECT_EQ(after.policy, SCHED_OTHER);
    EXPECT_EQ(after.nice, nice);
    // Linux before 6.12 says 0 and keeps its slices.
    if (before.slice != 0) {
      EXPECT_EQ(after.slice, 100'000);
    }
  }).join();
}

TEST(ShortSlicesTest, AnotherPolicyStays) {
  std::thread([] {
    Attributes batch = OfThisThread();
    batch.policy = SCHED_BATCH;
    ASSERT_EQ(syscall(SYS_sched_setattr, 0, &batch, 0), 0);
    AskForShortSlices();
    EXPECT_EQ(OfThisThread().policy, SCHED_BATCH);
    EXPECT_EQ(OfThisThread().slice, batch.slice);
  }).join();
}

}  // namespace
}  // namespace syncgrads
