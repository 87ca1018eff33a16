// Tests what a worker reports about its training.

#include "worker/report/figures_report.h"

#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace syncgrads {
namespace {

class RecordingTeam : public SoleWorker {
 public:
  void ReportFigures(const TrainingFigures& figures) override {
    EXPECT_TRUE(CheckFigures(figures).ok());
    reported.push_back(figures);
  }
  std::vector<TrainingFigures> reported;
};

StepUse UseOf(absl::Duration compute, absl::Duration wait, double rate) {
  return {.rows = 8, .times = {.compute = compute, .wait = wait}, .learning_rate = rate};
}

TEST(FiguresReportTest, EachStepIsReportedWithTheTimesSinceTheBeginning) {
  RecordingTeam team;
  FiguresReport report(team, "cpu");
  report.Used(UseOf(absl::Seconds(1), absl::Seconds(2), 0.5));
  report.Stepped(1, 0.75);
  report.Used(UseOf(absl::Seconds(3), absl::Seconds(4), 0.25));
  report.Stepped(2, 0.5);
  ASSERT_EQ(team.reported.size(), 2u);
  EXPECT_EQ(team.reported[0].step, 1u);
  EXPECT_EQ(team.reported[0].loss, 0.75);
  EXPECT_EQ(team.reported[0].learning_rate, 0.5);
  EXPECT_EQ(team.reported[0].device, "cpu");
  const StepTimes all = {.compute = absl::Seconds(4), .wait = absl::Seconds(6)};
  EXPECT_EQ(team.reported[1].times, all);
  EXPECT_FALSE(team.reported[1].validation.has_value());
}

TEST(FiguresReportTest, AStepWithoutABatchKeepsTheLossAndOneThatIsNotFiniteHasNone) {
  RecordingTeam team;
  FiguresReport report(team, "cpu");
  report.Stepped(1, 0.75);
  report.Stepped(2, std::nullopt);
  EXPECT_EQ(team.reported.back().loss, 0.75);
  report.Stepped(3, std::nan(""));
  EXPECT_EQ(team.reported.back().loss, std::nullopt);
}

TEST(FiguresReportTest, AValidationStaysUntilTheNextOne) {
  RecordingTeam team;
  FiguresReport report(team, "cpu");
  report.Stepped(4, 0.75);
  // The page shows "loss" beside the loss of the training.
  report.Validated(3, {{"val_loss", 0.5}, {"top5", 0.75}});
  const Validation of_job = {3, {{"loss", 0.5}, {"top5", 0.75}}};
  EXPECT_EQ(team.reported.back().validation, of_job);
  report.Validated(4, {{"loss", std::nan("")}, {"accuracy", 0.5}});
  report.Stepped(5, 0.5);
  const Validation first = {4, {{"accuracy", 0.5}}};
  EXPECT_EQ(team.reported.back().validation, first);
  report.Evaluated("trained_on", {{"loss", 0.25}});
  EXPECT_EQ(team.reported.back().validation, first);
  report.Evaluated("held_out", {{"loss", 0.125}});
  const Validation last = {5, {{"loss", 0.125}}};
  EXPECT_EQ(team.reported.back().validation, last);
}

TEST(FiguresReportTest, ALongNameOfADeviceIsCut) {
  RecordingTeam team;
  FiguresReport report(team, std::string(100, 'x'));
  report.Stepped(1, 0.5);
  EXPECT_EQ(team.reported.back().device, std::string(64, 'x'));
}

}  // namespace
}  // namespace syncgrads
