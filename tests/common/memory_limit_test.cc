#include "common/memory_limit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/common/expect_error.h"

namespace syncgrads {
namespace {

class MemoryLimitTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path whole = root_ + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }

  uint64_t Available() {
    const absl::StatusOr<uint64_t> available = AvailableMemory(root_);
    EXPECT_THAT(available, IsOk());
    return available.value_or(1);
  }

  const std::string root_ =
      ::testing::TempDir() + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(MemoryLimitTest, IsWhatTheMachineHasAvailable) {
  Write("/proc/meminfo",
        "MemTotal:       100 kB\nMemFree:  7 kB\nMemAvailable:    64 kB\nX: 1 kB\n");
  EXPECT_EQ(Available(), 64u * 1024);
}

TEST_F(MemoryLimitTest, TheTotalIsTheLeastOfTheMachinesMemoryAndTheLimits) {
  EXPECT_EQ(TotalMemory(root_).value_or(1), 0u) << "it is not known";
  Write("/proc/meminfo", "MemTotal:       100 kB\nMemAvailable:    64 kB\n");
  EXPECT_EQ(TotalMemory(root_).value_or(1), 100u * 1024);
  Write("/sys/fs/cgroup/memory.max", "max\n");
  EXPECT_EQ(TotalMemory(root_).value_or(1), 100u * 1024);
  Write("/proc/self/cgroup", "0::/slurm/job\n");
  Write("/sys/fs/cgroup/slurm/memory.max", "50000\n");
  Write("/sys/fs/cgroup/slurm/memory.current", "49000\n");
  EXPECT_EQ(TotalMemory(root_).value_or(1), 50000u);
}

TEST_F(MemoryLimitTest, IsWhatTheControlGroupLeavesIfThatIsLess) {
  Write("/proc/meminfo", "MemAvailable:    64 kB\n");
  Write("/sys/fs/cgroup/memory.max", "10000\n");
  Write("/sys/fs/cgroup/memory.current", "4000\n");
  EXPECT_EQ(Available(), 6000u);
}

TEST_F(MemoryLimitTest, ReadsTheOlderControlGroupsToo) {
  Write("/proc/meminfo", "MemAvailable:    64 kB\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "6000\n");
  EXPECT_EQ(Available(), 0u);
}

TEST_F(MemoryLimitTest, EveryGroupAboveTheProcessCounts) {
  Write("/proc/meminfo", "MemAvailable:    64 kB\n");
  Write("/proc/self/cgroup", "1:name=systemd:/elsewhere\n0::/slurm/job:7/step\n");
  Write("/sys/fs/cgroup/slurm/job:7/step/memory.max", "max\n");
  Write("/sys/fs/cgroup/slurm/job:7/step/memory.current", "4000\n");
  Write("/sys/fs/cgroup/slurm/job:7/memory.max", "10000\n");
  Write("/sys/fs/cgroup/slurm/job:7/memory.current", "4000\n");
  EXPECT_EQ(Available(), 6000u);
  Write("/sys/fs/cgroup/slurm/memory.max", "10000\n");
  Write("/sys/fs/cgroup/slurm/memory.current", "9000\n");
  EXPECT_EQ(Available(), 1000u);
}

TEST_F(MemoryLimitTest, EveryOlderGroupAboveTheProcessCounts) {
  Write("/proc/meminfo", "MemAvailable:    64 kB\n");
  Write("/proc/self/cgroup", "4:cpu,memory:/system/server\n0::/\n");
  Write("/sys/fs/cgroup/memory/system/memory.limit_in_bytes", "5000\n");
  Write("/sys/fs/cgroup/memory/system/memory.usage_in_bytes", "2000\n");
  EXPECT_EQ(Available(), 3000u);
}

// A container's group has the path of the host, where the group is not mounted.
TEST_F(MemoryLimitTest, AGroupThatIsNotMountedIsNoLimit) {
  Write("/proc/meminfo", "MemAvailable:    64 kB\n");
  Write("/proc/self/cgroup", "0::/../host/group\n");
  Write("/sys/fs/cgroup/memory.max", "10000\n");
  Write("/sys/fs/cgroup/memory.current", "4000\n");
  EXPECT_EQ(Available(), 6000u);
}

TEST_F(MemoryLimitTest, PagesOfFilesThatCanBeFreedAreUnused) {
  Write("/proc/meminfo", "MemAvailable:    64 kB\n");
  Write("/sys/fs/cgroup/memory.max", "10000\n");
  Write("/sys/fs/cgroup/memory.current", "9000\n");
  Write("/sys/fs/cgroup/memory.stat", "anon 3000\nfile 6000\ninactive_file 5000\nx 1\n");
  EXPECT_EQ(Available(), 6000u);
}

TEST_F(MemoryLimitTest, AGroupWithoutALimitIsNone) {
  Write("/proc/meminfo", "MemAvailable:    64 kB\n");
  Write("/sys/fs/cgroup/memory.max", "max\n");
  Write("/sys/fs/cgroup/memory.current", "4000\n");
  EXPECT_EQ(Available(), 64u * 1024);
}

// If this were not an error, a client that uses up all descriptors could register groups of any
// size.
TEST_F(MemoryLimitTest, WithoutADescriptorItIsNotKnown) {
  Write("/proc/meminfo", "MemAvailable:    64 kB\n");
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::StatusOr<uint64_t> available = AvailableMemory(root_);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ExpectError(available, absl::StatusCode::kUnavailable, {"/proc/meminfo", "Too many open files"});
  EXPECT_EQ(Available(), 64u * 1024);
}

TEST_F(MemoryLimitTest, WhatIsNotThereIsNoLimit) { EXPECT_EQ(Available(), UINT64_MAX); }

}  // namespace
}  // namespace syncgrads
