// Tests contributions with NaNs and infinities, and their rounds.

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/core/rounds/chunk_rounds.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMost = std::numeric_limits<float>::max();

// Three members of a group with tensors "a" and "b" of two elements each, in one chunk.
class NonFiniteRoundsTest : public testing::Test {
 protected:
  void Start(OnBad non_finite, UpdateRule rule = Reduction::kAverage) {
    GroupSpec spec{"model", {{"a", DType::kF32, {2}}, {"b", DType::kF32, {2}}}, std::move(rule)};
    spec.non_finite = non_finite;
    plan_ = std::make_unique<GroupPlan>(PlanOf(std::move(spec)));
    auto roster = std::make_shared<Roster>();
    roster->Add(EpochOfSize(3));
    current_.Set(std::move(roster));
    rounds_ = std::make_unique<ChunkRounds>(*plan_, ChunkId{0}, Generation{1}, current_, clock_,
                                            nullptr, 0, alerts_);
    for (int i = 0; i < 3; ++i) sinks_.push_back(std::make_shared<RecordingSink>());
  }

  void Push(uint32_t member, const std::vector<float>& values, uint64_t round = 1) {
    rounds_->Push(PushOf(member, round), PayloadOf(BytesOf(values)), sinks_[member]);
  }
  void Skip(uint32_t member, uint64_t round = 1) {
    rounds_->Push(SkipOf(member, round), PayloadOf(""), sinks_[member]);
  }

  FakeClock clock_;
  std::unique_ptr<GroupPlan> plan_;
  std::shared_ptr<GradientAlerts> alerts_ = std::make_shared<GradientAlerts>();
  CurrentRoster current_{nullptr};
  std::unique_ptr<ChunkRounds> rounds_;
  std::vector<std::shared_ptr<RecordingSink>> sinks_;
};

TEST_F(NonFiniteRoundsTest, RejectNamesTensorWorkerIndexAndValueToItsSenderAlone) {
  Start(OnBad::kReject);
  Push(1, {1, 2, 3, -kInfinity});
  Push(0, {1, 2, 3, 4});
  Push(2, {3, 4, 5, 6});
  ASSERT_EQ(sinks_[1]->count(), 1u);
  ExpectError(sinks_[1]->error(), kInvalid,
              {"gradient \"b\"", "worker \"w1\"", "index 1", "-inf", "step 1", "\"model\""});
  for (const uint32_t member : {0, 2}) {
    EXPECT_THAT(sinks_[member]->values<float>(), ElementsAre(2, 3, 4, 5));
    EXPECT_THAT(sinks_[member]->last().header.counts, ElementsAre(2, 2));
    EXPECT_THAT(sinks_[member]->last().header.contributors, ElementsAre(0, 2));
  }
  EXPECT_EQ(rounds_->open_round(), Round{2});
  EXPECT_THAT(alerts_->Take().lines,
              ElementsAre(AllOf(HasSubstr("worker \"w1\""), HasSubstr("refused"))));
  EXPECT_THAT(alerts_->NonFinite(), ElementsAre(Pair("w1", 1)));
}

TEST_F(NonFiniteRoundsTest, TheNextRoundTakesItsSenderAgain) {
  Start(OnBad::kReject);
  for (const uint32_t member : {0, 1, 2}) Push(member, {1, kNaN, 1, 1});
  for (const uint32_t member : {0, 1, 2}) Push(member, {1, 2, 3, 4}, 2);
  for (const uint32_t member : {0, 1, 2}) {
    ASSERT_EQ(sinks_[member]->count(), 2u);
    ExpectError(sinks_[member]->answers()[0].header.error, kInvalid, {"index 1"});
    EXPECT_THAT(sinks_[member]->values<float>(), ElementsAre(1, 2, 3, 4));
  }
}

TEST_F(NonFiniteRoundsTest, ARefusedPushThatIsRepeatedGetsTheResultOfItsRound) {
  Start(OnBad::kReject);
  Push(0, {1, 2, 3, kNaN});
  Push(1, {1, 2, 3, 4});
  Skip(2);
  ExpectError(sinks_[0]->error(), kInvalid, {"nan"});
  Push(0, {1, 2, 3, kNaN});
  EXPECT_THAT(sinks_[0]->values<float>(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(sinks_[0]->last().header.contributors, ElementsAre(1));
}

TEST_F(NonFiniteRoundsTest, SkipLeavesOutTheSpanAndTellsItsSender) {
  Start(OnBad::kSkip);
  Push(0, {1, 2, 3, 4});
  Push(1, {kNaN, 2, 30, 40});
  Push(2, {5, 6, 6, 7});
  for (const uint32_t member : {0, 1, 2}) {
    ASSERT_EQ(sinks_[member]->count(), 1u);
    EXPECT_THAT(sinks_[member]->values<float>(), ElementsAre(3, 4, 13, 17));
    const UpdateHeader header = sinks_[member]->last().header;
    EXPECT_THAT(header.counts, ElementsAre(2, 3));
    EXPECT_THAT(header.contributors, ElementsAre(0, 1, 2));
    if (member == 1) {
      EXPECT_THAT(header.left_out, ElementsAre(0));
    } else {
      EXPECT_THAT(header.left_out, IsEmpty());
    }
  }
  EXPECT_THAT(alerts_->Take().lines, ElementsAre(HasSubstr("left out")));
  EXPECT_EQ(alerts_->total(), 1u);
}

TEST_F(NonFiniteRoundsTest, SkipOfEverySpanIsASkip) {
  Start(OnBad::kSkip);
  Push(0, {kNaN, 2, 3, kInfinity});
  Push(1, {1, 2, 3, 4});
  Push(2, {1, 2, 3, 4});
  EXPECT_THAT(sinks_[0]->values<float>(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(sinks_[0]->last().header.contributors, ElementsAre(1, 2));
  EXPECT_THAT(sinks_[0]->last().header.left_out, ElementsAre(0, 1));
}

TEST_F(NonFiniteRoundsTest, OppositeInfinitiesAreBothFound) {
  Start(OnBad::kSkip);
  Push(0, {kInfinity, 1, 1, 1});
  Push(1, {-kInfinity, 1, 1, 1});
  Push(2, {7, 1, 1, 1});
  EXPECT_THAT(sinks_[2]->values<float>(), ElementsAre(7, 1, 1, 1));
  EXPECT_THAT(sinks_[2]->last().header.counts, ElementsAre(1, 3));
}

TEST_F(NonFiniteRoundsTest, OfOneContributorIsFoundAsWell) {
  Start(OnBad::kReject);
  Push(0, {1, kNaN, 1, 1});
  Skip(1);
  Skip(2);
  ExpectError(sinks_[0]->error(), kInvalid, {"\"a\"", "index 1", "nan"});
  // The other members get a round without contributions.
  EXPECT_THAT(sinks_[1]->last().header.counts, ElementsAre(0, 0));
  EXPECT_THAT(sinks_[1]->last().payload, IsEmpty());
}

TEST_F(NonFiniteRoundsTest, AllowCountsItLikeAnyOther) {
  Start(OnBad::kAllow);
  for (const uint32_t member : {0, 1, 2}) Push(member, {kInfinity, 2, 3, 4});
  EXPECT_THAT(sinks_[0]->values<float>(), ElementsAre(kInfinity, 2, 3, 4));
  EXPECT_THAT(sinks_[0]->last().header.counts, ElementsAre(3, 3));
  EXPECT_EQ(alerts_->total(), 0u);
}

TEST_F(NonFiniteRoundsTest, ASumFollowsThePolicyToo) {
  Start(OnBad::kSkip, Reduction::kSum);
  Push(0, {kInfinity, 2, 3, 4});
  for (const uint32_t member : {1, 2}) Push(member, {1, 2, 3, 4});
  EXPECT_THAT(sinks_[0]->values<float>(), ElementsAre(2, 4, 9, 12));
  EXPECT_THAT(sinks_[0]->last().header.counts, ElementsAre(2, 3));
}

TEST_F(NonFiniteRoundsTest, OtherReductionsAndSumsThatAllowItTakeAnyNumber) {
  for (const auto& [policy, reduction] :
       {std::pair(OnBad::kAllow, Reduction::kSum), std::pair(OnBad::kReject, Reduction::kMax)}) {
    Start(policy, reduction);
    for (const uint32_t member : {0, 1, 2}) Push(member, {kInfinity, 2, 3, 4});
    EXPECT_EQ(sinks_[0]->values<float>()[0], kInfinity);
  }
}

TEST_F(NonFiniteRoundsTest, FiniteNumbersThatAreTooLargeTogetherAreNobodysFault) {
  Start(OnBad::kReject);
  for (const uint32_t member : {0, 1, 2}) Push(member, {1, kMost, 1, 1});
  for (const uint32_t member : {0, 1, 2}) {
    EXPECT_THAT(sinks_[member]->values<float>(), ElementsAre(1, kInfinity, 1, 1));
  }
  EXPECT_THAT(alerts_->Take().lines, ElementsAre(HasSubstr("too large")));
}

TEST_F(NonFiniteRoundsTest, AnOptimizerUpdatesWithTheOthersGradients) {
  Start(OnBad::kSkip, Optimizer(Sgd{.learning_rate = 1}));
  Push(0, {10, 10, 10, 10}, 0);
  Skip(1, 0);
  Skip(2, 0);
  Push(0, {1, 2, 3, 4});
  Push(1, {kNaN, 2, 3, 4});
  Push(2, {3, 2, 3, 4});
  EXPECT_THAT(sinks_[0]->values<float>(), ElementsAre(8, 8, 7, 6));
  EXPECT_THAT(sinks_[0]->last().header.counts, ElementsAre(2, 3));
  // No contribution of this round is valid, so the parameters do not change.
  for (const uint32_t member : {0, 1, 2}) Push(member, {1, kNaN, kNaN, 1}, 2);
  EXPECT_THAT(sinks_[0]->values<float>(), ElementsAre(8, 8, 7, 6));
  EXPECT_THAT(sinks_[0]->last().header.counts, ElementsAre(0, 0));
}

TEST(GradientAlertsTest, KeepsTheFirstOnesAndCountsTheRest) {
  GradientAlerts alerts;
  for (int i = 0; i < 50; ++i) alerts.Add("line");
  const GradientAlerts::Taken taken = alerts.Take();
  EXPECT_THAT(taken.lines, SizeIs(20));
  EXPECT_EQ(taken.more, 30u);
  EXPECT_THAT(alerts.Take().lines, IsEmpty());
  EXPECT_EQ(alerts.total(), 50u);
}

TEST(GradientAlertsTest, CountsTheContributionsOfEachWorkerAndOfTheOthersTogether) {
  GradientAlerts alerts;
  alerts.Add("of nobody");
  for (int round = 0; round < 3; ++round) {
    for (size_t w = 0; w < GradientAlerts::kMostWorkers + 10; ++w) {
      alerts.AddNonFinite(absl::StrCat("w", w), "line");
    }
  }
  const std::map<std::string, uint64_t> counts = alerts.NonFinite();
  EXPECT_THAT(counts, SizeIs(GradientAlerts::kMostWorkers + 1));
  EXPECT_EQ(counts.at("w0"), 3u);
  EXPECT_EQ(counts.at("w63"), 3u);
  EXPECT_EQ(counts.at("(others)"), 30u);
  EXPECT_EQ(alerts.total(), 1 + 3 * 74u);
}

}  // namespace
}  // namespace syncgrads::server
