#include "tests/sim/schedule.h"

#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace syncgrads::sim {
namespace {

class ScheduleTest : public ::testing::Test {
 protected:
  ScheduleTest() : directory_(absl::StrCat(::testing::TempDir(), "/schedule_test")) {
    std::filesystem::create_directory(directory_);
  }
  ~ScheduleTest() override { std::filesystem::remove_all(directory_); }

  ScheduleOutcome Run(uint64_t seed) {
    return RunSchedule({.seed = seed, .directory = directory_});
  }

 private:
  const std::string directory_;
};

// `./dev sim` runs more of them.
TEST_F(ScheduleTest, EverythingHoldsInEachOfThem) {
  uint64_t results = 0, server_deaths = 0, dropped = 0, epochs = 0;
  constexpr uint64_t kSchedules = 500;
  for (uint64_t seed = 1; seed <= kSchedules; ++seed) {
    const ScheduleOutcome outcome = Run(seed);
    EXPECT_EQ(outcome.failure, "") << "replay with ./dev sim --trace --seed=" << seed << "\n"
                                   << outcome.description;
    results += outcome.results;
    server_deaths += outcome.server_deaths;
    dropped += outcome.dropped;
    epochs += outcome.epochs;
  }
  // And they are of the kind that tells.
  EXPECT_GT(results, 10 * kSchedules);
  EXPECT_GT(server_deaths, kSchedules / 2);
  EXPECT_GT(dropped, kSchedules / 10);
  EXPECT_GT(epochs, kSchedules);
}

TEST_F(ScheduleTest, OneSeedIsOneSchedule) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const ScheduleOutcome first = Run(seed), second = Run(seed);
    EXPECT_EQ(first.description, second.description);
    EXPECT_EQ(first.events, second.events);
    EXPECT_EQ(first.results, second.results);
    EXPECT_EQ(first.epochs, second.epochs);
  }
}

}  // namespace
}  // namespace syncgrads::sim
