#include "tests/sim/schedule.h"

#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads::sim {
namespace {

using ::testing::HasSubstr;

class ScheduleTest : public ::testing::Test {
 protected:
  ScheduleTest() : directory_(absl::StrCat(::testing::TempDir(), "/schedule_test")) {
    std::filesystem::create_directory(directory_);
  }
  ~ScheduleTest() override { std::filesystem::remove_all(directory_); }

  ScheduleOutcome Run(uint64_t seed, bool pauses = false) {
    return RunSchedule({.seed = seed, .pauses = pauses, .directory = directory_});
  }

 private:
  const std::string directory_;
};

// Under the address sanitizer a schedule takes thirty times as long.
#ifdef __SANITIZE_ADDRESS__
constexpr uint64_t kSchedules = 100, kSchedulesWithPauses = 60;
#else
constexpr uint64_t kSchedules = 500, kSchedulesWithPauses = 300;
#endif

// `./dev sim` runs more schedules than this test.
TEST_F(ScheduleTest, EverythingHoldsInEachOfThem) {
  uint64_t results = 0, server_deaths = 0, dropped = 0, epochs = 0;
  for (uint64_t seed = 1; seed <= kSchedules; ++seed) {
    const ScheduleOutcome outcome = Run(seed);
    EXPECT_EQ(outcome.failure, "") << "replay with ./dev sim --trace --seed=" << seed << "\n"
                                   << outcome.description;
    results += outcome.results;
    server_deaths += outcome.server_deaths;
    dropped += outcome.dropped;
    epochs += outcome.epochs;
  }
  // The schedules must be eventful enough to be a test.
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

TEST_F(ScheduleTest, EverythingHoldsWithPauses) {
  for (uint64_t seed = 1; seed <= kSchedulesWithPauses; ++seed) {
    const ScheduleOutcome outcome = Run(seed, /*pauses=*/true);
    EXPECT_EQ(outcome.failure, "")
        << "replay with ./dev sim --trace --pauses --seed=" << seed << "\n"
        << outcome.description;
  }
}

TEST_F(ScheduleTest, PausesAreAddedToTheScheduleOfTheSeed) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const std::string without = Run(seed).description;
    const ScheduleOutcome first = Run(seed, /*pauses=*/true), second = Run(seed, /*pauses=*/true);
    // The descriptions differ in the number of workers, because of successors. They agree from the
    // steps on.
    EXPECT_THAT(first.description, HasSubstr(without.substr(without.find(" steps"))));
    EXPECT_THAT(first.description, HasSubstr("pause for"));
    EXPECT_EQ(first.events, second.events);
    EXPECT_EQ(first.results, second.results);
  }
}

}  // namespace
}  // namespace syncgrads::sim
