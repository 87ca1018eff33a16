#include "common/memory_limit.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace syncgrads {
namespace {

class MemoryLimitTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path whole = root_ + path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }

  const std::string root_ =
      ::testing::TempDir() + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(MemoryLimitTest, IsWhatTheMachineHasAvailable) {
  Write("/proc/meminfo",
        "MemTotal:       100 kB\nMemFree:  7 kB\nMemAvailable:    64 kB\nX: 1 kB\n");
  EXPECT_EQ(AvailableMemory(root_), 64u * 1024);
}

TEST_F(MemoryLimitTest, IsWhatTheControlGroupLeavesIfThatIsLess) {
  Write("/proc/meminfo", "MemAvailable:    64 kB\n");
  Write("/sys/fs/cgroup/memory.max", "10000\n");
  Write("/sys/fs/cgroup/memory.current", "4000\n");
  EXPECT_EQ(AvailableMemory(root_), 6000u);
}

TEST_F(MemoryLimitTest, ReadsTheOlderControlGroupsToo) {
  Write("/proc/meminfo", "MemAvailable:    64 kB\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n");
  Write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "6000\n");
  EXPECT_EQ(AvailableMemory(root_), 0u);
}

TEST_F(MemoryLimitTest, AGroupWithoutALimitIsNone) {
  Write("/proc/meminfo", "MemAvailable:    64 kB\n");
  Write("/sys/fs/cgroup/memory.max", "max\n");
  Write("/sys/fs/cgroup/memory.current", "4000\n");
  EXPECT_EQ(AvailableMemory(root_), 64u * 1024);
}

TEST_F(MemoryLimitTest, WhatCannotBeReadIsNoLimit) {
  EXPECT_EQ(AvailableMemory(root_), UINT64_MAX);
}

}  // namespace
}  // namespace syncgrads
