// How many processors a process may use.

#include "worker/base/processors.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/worker/testing/temporary_directory.h"

namespace syncgrads {
namespace {

class ProcessorsOfQuotaTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = directory_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  int Quota() { return ProcessorsOfQuota(directory_.path()); }

  TemporaryDirectory directory_;
};

TEST_F(ProcessorsOfQuotaTest, WithoutCgroupsOrWithoutAQuotaThereIsNone) {
  EXPECT_EQ(Quota(), 0);
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(Quota(), 0);
}

TEST_F(ProcessorsOfQuotaTest, TheLeastOfTheCgroupAndThoseAroundItCounts) {
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/cpu.max", "650000 100000\n");
  EXPECT_EQ(Quota(), 7);
  Write("/sys/fs/cgroup/a/cpu.max", "300000 100000\n");
  EXPECT_EQ(Quota(), 3);
  // A container sees its own cgroup as the root, whatever path the kernel reports.
  Write("/sys/fs/cgroup/cpu.max", "20000 100000\n");
  EXPECT_EQ(Quota(), 1);
}

TEST_F(ProcessorsOfQuotaTest, Version1HasTwoFiles) {
  Write("/proc/self/cgroup", "5:memory:/c\n4:cpu,cpuacct:/c\n");
  Write("/sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Quota(), 0);
  Write("/sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "200000\n");
  EXPECT_EQ(Quota(), 2);
}

TEST(AvailableProcessorsTest, TheAffinityMaskIsRespected) {
  const int all = AvailableProcessors();
  EXPECT_GE(all, 1);
  int restricted = 0;
  std::thread([&] {
    cpu_set_t mask, one;
    ASSERT_EQ(sched_getaffinity(0, sizeof(mask), &mask), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++i) {
      if (CPU_ISSET(i, &mask)) CPU_SET(i, &one);
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);  // of this thread
    restricted = AvailableProcessors();
  }).join();
  EXPECT_EQ(restricted, 1);
  EXPECT_EQ(AvailableProcessors(), all);
}

}  // namespace
}  // namespace syncgrads
