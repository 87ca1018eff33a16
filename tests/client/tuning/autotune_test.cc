#include "client/tuning/autotune.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr GroupId kFirst{3}, kSecond{4};
constexpr int kSteps = 2 * StepTuner::kTurns * StepTuner::kStepsOfTurn;

class AutotuneTest : public ::testing::Test {
 protected:
  TunedSetting Setting(const std::string& name) {
    return {name, "", {1, 2}, [this, name](int value) {
              used_.push_back(name + " " + std::to_string(value));
            }};
  }
  void EndSteps(GroupId group) {
    for (int step = 0; step < kSteps; ++step) {
      now_ += absl::Milliseconds(10);
      autotune_.StepEnded(group, now_);
    }
  }

  absl::Time now_ = absl::UnixEpoch();
  std::vector<std::string> used_;
  std::vector<std::string> found_;
  Autotune autotune_{[this](const std::string& line) { found_.push_back(line); }};
};

TEST_F(AutotuneTest, UsesTheStepsOfTheGroupThatBeganFirst) {
  EndSteps(kFirst);
  autotune_.Begin(kFirst, {Setting("threads")});
  autotune_.Begin(kSecond, {Setting("others")});
  EndSteps(kSecond);
  EXPECT_THAT(used_, IsEmpty());
  EndSteps(kFirst);
  EXPECT_THAT(used_, ElementsAre("threads 2", "threads 1", "threads 2", "threads 1", "threads 2",
                                 HasSubstr("threads")));
  EXPECT_THAT(found_, ElementsAre(HasSubstr("threads")));
}

TEST_F(AutotuneTest, NobodyHasToBeToldWhatWasFound) {
  Autotune silent{nullptr};
  silent.Begin(kFirst, {Setting("threads")});
  for (int step = 0; step < kSteps; ++step) {
    now_ += absl::Milliseconds(10);
    silent.StepEnded(kFirst, now_);
  }
  EXPECT_EQ(used_.size(), 2u * StepTuner::kTurns);
}

}  // namespace
}  // namespace syncgrads::client
