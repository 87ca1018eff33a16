#include "tests/fault/history.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads::fault {
namespace {

using ::testing::HasSubstr;

std::string Begins(const std::string& worker, int step, bool newcomer = false) {
  return absl::StrCat("{\"event\":\"begins\",\"worker\":\"", worker, "\",\"step\":", step,
                      ",\"newcomer\":", newcomer ? "true" : "false", "}\n");
}
std::string Made(const std::string& worker, int step, int epoch, const std::string& members,
                 const std::string& contributors, const std::string& rows = "[[0,1]]") {
  return absl::StrCat("{\"event\":\"step\",\"worker\":\"", worker, "\",\"step\":", step,
                      ",\"epoch\":", epoch, ",\"members\":[", members, "],\"contributors\":[",
                      contributors, "],\"whole\":true,\"rows\":", rows, "}\n");
}
std::string Ends(const std::string& worker, int step) {
  return absl::StrCat("{\"event\":\"ends\",\"worker\":\"", worker, "\",\"step\":", step, "}\n");
}

constexpr char kBoth[] = "\"a\",\"b\"";
constexpr char kA[] = "\"a\"";

// A run in which worker b dies after step 2 and joins again at step 4.
std::string LogOfA() {
  return absl::StrCat(Begins("a", 1), Made("a", 1, 1, kBoth, kBoth), Made("a", 2, 1, kBoth, kBoth),
                      Made("a", 3, 2, kA, kA), Made("a", 4, 3, kBoth, kBoth), Ends("a", 4));
}
std::string LogOfB() {
  return absl::StrCat(Begins("b", 1), Made("b", 1, 1, kBoth, kBoth),
                      "{\"event\":\"step\",\"worker\":\"b\",\"st",  // the process was killed here
                      "");
}
std::string LogOfNewB() {
  return absl::StrCat(Begins("b", 4, true), Made("b", 4, 3, kBoth, kBoth), Ends("b", 4));
}

absl::Status Check(const std::vector<std::string>& logs, uint64_t steps = 4) {
  History history;
  for (const std::string& log : logs) {
    absl::Status added = AddTo(history, log);
    if (!added.ok()) return added;
  }
  return CheckHistory(history, steps);
}

TEST(HistoryTest, AWorkerThatDiesAndComesBackIsInOrder) {
  const absl::Status status = Check({LogOfA(), LogOfB(), LogOfNewB()});
  EXPECT_TRUE(status.ok()) << status;
}

TEST(HistoryTest, ReadsEverythingOfAStep) {
  History history;
  ASSERT_TRUE(AddTo(history, absl::StrCat(Begins("a", 1),
                                          "{\"event\":\"step\",\"worker\":\"a\",\"step\":1,"
                                          "\"epoch\":5,\"members\":[\"a\",\"b\"],"
                                          "\"contributors\":[\"a\",\"b\"],\"whole\":false,"
                                          "\"parts\":[[\"a\",\"b\"],[\"a\"]],"
                                          "\"rows\":[[0,7],[2,3]]}\n"))
                  .ok());
  const Step& step = history.at("a").front().steps.front();
  EXPECT_EQ(step.number, 1u);
  EXPECT_EQ(step.epoch, 5u);
  EXPECT_EQ(step.parts, (std::vector<std::vector<std::string>>{{"a", "b"}, {"a"}}));
  EXPECT_EQ(step.rows, (std::vector<Row>{{0, 7}, {2, 3}}));
}

struct Wrong {
  std::string name;
  // In the log of worker a, `from` is replaced by `to`.
  std::string from, to;
  std::string complaint;
};
class WrongHistoryTest : public ::testing::TestWithParam<Wrong> {};

TEST_P(WrongHistoryTest, IsFound) {
  const std::string log = absl::StrReplaceAll(LogOfA(), {{GetParam().from, GetParam().to}});
  ASSERT_NE(log, LogOfA());
  const absl::Status status = Check({log, LogOfB(), LogOfNewB()});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().complaint));
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongHistoryTest,
    ::testing::Values(
        Wrong{"ASkippedStep", Made("a", 2, 1, kBoth, kBoth), "", "has made step 3, and the next"},
        Wrong{"AStepMadeTwice", Made("a", 2, 1, kBoth, kBoth), Made("a", 1, 1, kBoth, kBoth),
              "has made step 1, and the next was step 2"},
        Wrong{"TwoViewsOfAStep", Made("a", 4, 3, kBoth, kBoth), Made("a", 4, 3, kBoth, kA),
              "of step 4 a says"},
        Wrong{"AnEpochThatGoesBack", Made("a", 3, 2, kA, kA), Made("a", 3, 0, kA, kA),
              "is one of epoch 0"},
        Wrong{"AContributorThatIsNoMember", Made("a", 3, 2, kA, kA), Made("a", 3, 2, kA, kBoth),
              "step 3 counted [a, b], its members are [a]"},
        Wrong{"AContributionCountedTwice", Made("a", 3, 2, kA, kA),
              Made("a", 3, 2, kA, "\"a\",\"a\""), "step 3 counted [a, a]"},
        Wrong{"AContributionThatWasLost", Made("a", 3, 2, kA, kA), Made("a", 3, 2, kA, ""),
              "a contributed to step 3, which counted []"},
        Wrong{"AStrangerInAStep", Made("a", 3, 2, kA, kA), Made("a", 3, 2, "\"b\"", "", "[]"),
              "a has made step 3, whose members are [b]"},
        Wrong{"AnEndBeforeTheEnd", Ends("a", 4), Ends("a", 3), "has ended after step 3"},
        Wrong{"ALineThatIsNone", Ends("a", 4), "ends\n", "ends"}),
    [](const auto& wrong) { return wrong.param.name; });

TEST(HistoryTest, AWorkerMustNotComeBackToAStepThatItHasMade) {
  const std::string again = absl::StrCat(Begins("b", 1, true), Made("b", 1, 1, kBoth, kBoth));
  EXPECT_THAT(std::string(Check({LogOfA(), LogOfB(), again}).message()),
              HasSubstr("b begins again at step 1, and had made step 1"));
}

TEST(HistoryTest, WhoIsLateForAQuorumMissesStepsAndIsNotCounted) {
  const std::string late = absl::StrCat(Begins("b", 1), Made("b", 1, 1, kBoth, kA),
                                        Made("b", 3, 1, kBoth, kBoth), Ends("b", 3));
  const std::string whole =
      absl::StrCat(Begins("a", 1), Made("a", 1, 1, kBoth, kA), Made("a", 2, 1, kBoth, kA),
                   Made("a", 3, 1, kBoth, kBoth), Ends("a", 3));
  History history;
  ASSERT_TRUE(AddTo(history, late).ok());
  EXPECT_THAT(std::string(CheckHistory(history, 3, Waits::kForQuorum).message()),
              HasSubstr("nobody has seen step 2"));
  ASSERT_TRUE(AddTo(history, whole).ok());
  EXPECT_TRUE(CheckHistory(history, 3, Waits::kForQuorum).ok());
  EXPECT_THAT(std::string(CheckHistory(history, 3).message()),
              HasSubstr("b contributed to step 1, which counted [a]"));
}

TEST(HistoryTest, EveryStepMustHaveBeenSeen) {
  EXPECT_THAT(std::string(Check({LogOfB(), LogOfNewB()}).message()),
              HasSubstr("nobody has seen step 2"));
  const std::string short_log = absl::StrReplaceAll(LogOfA(), {{Ends("a", 4), ""}});
  EXPECT_THAT(std::string(Check({short_log, LogOfB()}, 5).message()),
              HasSubstr("the last step that was seen is 4, and there are 5"));
}

}  // namespace
}  // namespace syncgrads::fault
