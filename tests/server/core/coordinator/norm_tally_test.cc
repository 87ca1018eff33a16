#include "server/core/coordinator/norm_tally.h"

#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

constexpr ServerIndex kFirst{0}, kSecond{1};

// A plan with the tensor "a" of one chunk and the tensor "b" of two chunks. The second chunk is on
// the second server.
std::shared_ptr<const GroupPlan> Plan(Optimizer rule, double clip_norm) {
  GroupSpec spec;
  spec.name = "model";
  spec.tensors = {{"a", DType::kF32, {2}}, {"b", DType::kF32, {4}}};
  spec.rule = std::move(rule);
  spec.clip_norm = clip_norm;
  spec.chunk_bytes = 16;
  return std::make_shared<const GroupPlan>(PlanOf(std::move(spec), {kFirst, kSecond}));
}

ReducedChunk Part(uint32_t chunk, std::vector<SquareSums> spans,
                  NormStage stage = NormStage::kGradient, uint64_t round = 1, uint64_t epoch = 1) {
  ReducedChunk part;
  part.chunk = ChunkId{chunk};
  part.round = Round{round};
  part.epoch = epoch;
  part.stage = stage;
  part.spans = std::move(spans);
  return part;
}

uint64_t FirstEpoch(Round) { return 1; }

TEST(NormTallyTest, DecidesWhenEveryChunkHasTold) {
  NormTally tally(Plan(Sgd{}, 2.5));
  tally.Reduced(kFirst, Part(0, {{0, 9}, {0, 7}}));
  tally.Reduced(kFirst, Part(0, {{0, 9}, {0, 7}}));
  EXPECT_EQ(tally.Decide(FirstEpoch), std::nullopt);
  tally.Reduced(kSecond, Part(1, {{0, 9}}));
  const std::optional<StepNorms> norms = tally.Decide(FirstEpoch);
  ASSERT_TRUE(norms.has_value());
  EXPECT_EQ(*norms, (StepNorms{GroupId{}, Round{1}, 1, 0.5, {}}));
  tally.Decided(*norms);
  EXPECT_EQ(tally.Decide(FirstEpoch), std::nullopt) << "it has been said";
}

TEST(NormTallyTest, ShortGradientsAndThoseThatAreNotFiniteStay) {
  for (const double sum : {1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
    NormTally tally(Plan(Sgd{}, 2.5));
    tally.Reduced(kFirst, Part(0, {{0, sum}, {0, 1}}));
    tally.Reduced(kSecond, Part(1, {{0, 1}}));
    EXPECT_EQ(tally.Decide(FirstEpoch)->gradient_factor, 1) << sum;
  }
}

TEST(NormTallyTest, RatiosAreOfWholeTensors) {
  NormTally tally(Plan(Lamb{}, 0));
  tally.Reduced(kFirst, Part(0, {{4, 16}, {5, 1}}, NormStage::kTensors));
  tally.Reduced(kSecond, Part(1, {{4, 0}}, NormStage::kTensors));
  EXPECT_THAT(tally.Decide(FirstEpoch)->ratios, ElementsAre(DoubleEq(0.5), DoubleEq(3)));
}

TEST(NormTallyTest, TheSecondStageRemembersTheFirst) {
  NormTally tally(Plan(Lamb{}, 2.5));
  for (uint32_t chunk : {0, 1}) {
    tally.Reduced(ServerIndex{chunk},
                  Part(chunk, chunk == 0 ? std::vector<SquareSums>{{0, 9}, {0, 7}}
                                         : std::vector<SquareSums>{{0, 9}}));
  }
  tally.Decided(*tally.Decide(FirstEpoch));
  tally.Reduced(kSecond, Part(1, {{1, 1}}, NormStage::kTensors));
  // A server that has not received the decision yet sends its sums again.
  tally.Reduced(kFirst, Part(0, {{0, 9}, {0, 7}}));
  EXPECT_EQ(tally.Decide(FirstEpoch), std::nullopt);
  tally.Reduced(kFirst, Part(0, {{1, 1}, {1, 1}}, NormStage::kTensors));
  const std::optional<StepNorms> norms = tally.Decide(FirstEpoch);
  ASSERT_TRUE(norms.has_value());
  EXPECT_EQ(norms->gradient_factor, 0.5);
  EXPECT_THAT(norms->ratios, ElementsAre(1, 1));
}

TEST(NormTallyTest, AServerThatIsAwayIsWaitedForAndItsLastWordCounts) {
  NormTally tally(Plan(Sgd{}, 2.5));
  tally.Reduced(kFirst, Part(0, {{0, 9}, {0, 7}}));
  tally.Forget(kFirst);
  tally.Reduced(kSecond, Part(1, {{0, 9}}));
  EXPECT_EQ(tally.Decide(FirstEpoch), std::nullopt);
  tally.Reduced(kFirst, Part(0, {{0, 90}, {0, 1}}));
  EXPECT_EQ(tally.Decide(FirstEpoch)->gradient_factor, 0.25);
}

TEST(NormTallyTest, WhatWasDecidedForARoundOfAnotherEpochIsDecidedAnew) {
  NormTally tally(Plan(Sgd{}, 2.5));
  tally.Decided({GroupId{}, Round{1}, 1, 0.125, {}});
  const auto tell = [&tally](uint64_t epoch) {
    tally.Reduced(kFirst, Part(0, {{0, 9}, {0, 7}}, NormStage::kGradient, 1, epoch));
    tally.Reduced(kSecond, Part(1, {{0, 9}}, NormStage::kGradient, 1, epoch));
  };
  tell(1);
  EXPECT_EQ(tally.Decide(FirstEpoch), std::nullopt);
  const auto second_epoch = [](Round) { return uint64_t{2}; };
  EXPECT_EQ(tally.Decide(second_epoch), std::nullopt);
  tell(2);
  ASSERT_TRUE(tally.Decide(second_epoch).has_value());
  EXPECT_EQ(*tally.Decide(second_epoch), (StepNorms{GroupId{}, Round{1}, 2, 0.5, {}}));
}

TEST(NormTallyTest, HearsNothingThatDoesNotFit) {
  NormTally tally(Plan(Sgd{}, 2.5));
  tally.Reduced(kSecond, Part(1, {{0, 9}}));
  tally.Reduced(kSecond, Part(0, {{0, 9}, {0, 7}}));  // a chunk of the other server
  tally.Reduced(kFirst, Part(2, {{0, 9}}));
  tally.Reduced(kFirst, Part(0, {{0, 9}}));
  tally.Reduced(kFirst, Part(0, {}));
  EXPECT_EQ(tally.Decide(FirstEpoch), std::nullopt);
}

}  // namespace
}  // namespace syncgrads::server
