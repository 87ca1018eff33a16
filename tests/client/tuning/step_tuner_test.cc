#include "client/tuning/step_tuner.h"

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A simulated training run. The duration of a step is the sum over the settings of a number of
// milliseconds that depends on the setting's value. The first step after a change takes ten times
// as long.
class Training {
 public:
  TunedSetting Setting(const std::string& name, std::vector<int> values, std::map<int, double> ms) {
    used[name] = {values.front()};
    ms_[name] = std::move(ms);
    return {name, " of them", std::move(values), [this, name](int value) {
              used[name].push_back(value);
              changed_ = true;
            }};
  }

  void Steps(StepTuner& tuner) {
    absl::Time now = absl::UnixEpoch();
    changed_ = true;
    while (!tuner.done()) {
      double ms = 0;
      for (const auto& [name, values] : used) ms += ms_[name].at(values.back());
      now += absl::Milliseconds(ms * (changed_ ? 10 : 1));
      changed_ = false;
      const auto change = tuner.StepEnded(now);
      if (!change.has_value()) continue;
      change->use();
      if (!change->found.empty()) found.push_back(change->found);
    }
  }

  // For each setting, the values that were used, in order.
  std::map<std::string, std::vector<int>> used;
  std::vector<std::string> found;

 private:
  std::map<std::string, std::map<int, double>> ms_;
  bool changed_ = false;
};

TEST(StepTunerTest, TakesTheFastestAfterTurns) {
  Training run;
  StepTuner tuner({run.Setting("threads", {2, 1, 4}, {{1, 30}, {2, 20}, {4, 15}})});
  run.Steps(tuner);
  EXPECT_THAT(run.used["threads"], ElementsAre(2, 1, 4, 2, 1, 4, 2, 1, 4, 4));
  EXPECT_THAT(run.found, ElementsAre("threads: a step with 4 of them takes 15 ms; with 2 of them, "
                                     "the default, takes 20 ms"));
  EXPECT_FALSE(tuner.StepEnded(absl::UnixEpoch()).has_value());
}

TEST(StepTunerTest, GoesBackToTheUsualValueUnlessAnotherIsClearlyFaster) {
  Training run;
  StepTuner tuner({run.Setting("threads", {2, 1, 4}, {{1, 19.5}, {2, 20}, {4, 25}})});
  run.Steps(tuner);
  EXPECT_EQ(run.used["threads"].back(), 2);
  EXPECT_THAT(run.found, ElementsAre(HasSubstr("no other was faster")));
}

TEST(StepTunerTest, TriesOneSettingAfterTheOther) {
  Training run;
  StepTuner tuner({run.Setting("threads", {2, 1}, {{1, 10}, {2, 20}}),
                   run.Setting("none", {7}, {{7, 1}}),
                   run.Setting("window", {3, 5}, {{3, 20}, {5, 2}})});
  run.Steps(tuner);
  EXPECT_THAT(run.used["threads"], ElementsAre(2, 1, 2, 1, 2, 1, 1));
  EXPECT_THAT(run.used["none"], ElementsAre(7));
  EXPECT_THAT(run.used["window"], ElementsAre(3, 5, 3, 5, 3, 5, 5));
  // While the second setting is tried, the first one has the value that was chosen for it.
  EXPECT_THAT(run.found, ElementsAre(HasSubstr("threads: a step with 1 of them takes 31 ms"),
                                     HasSubstr("window: a step with 5 of them takes 13 ms")));
}

TEST(StepTunerTest, TriesAValueOnceThatStandsTwice) {
  Training run;
  StepTuner tuner({run.Setting("threads", {2, 1, 2}, {{1, 30}, {2, 20}}),
                   run.Setting("one", {7, 7}, {{7, 1}})});
  run.Steps(tuner);
  EXPECT_THAT(run.used["threads"], ElementsAre(2, 1, 2, 1, 2, 1, 2));
  EXPECT_THAT(run.used["one"], ElementsAre(7));
}

TEST(StepTunerTest, HasNothingToDoWithoutSettings) {
  StepTuner tuner({});
  EXPECT_TRUE(tuner.done());
  EXPECT_FALSE(tuner.StepEnded(absl::UnixEpoch()).has_value());
}

}  // namespace
}  // namespace syncgrads::client
