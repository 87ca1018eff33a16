#include "client/rounds/tensor_collector.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr ChunkId kFirst{0}, kSecond{1};

// Makes a group of three f32 tensors of 16 elements. The first two share chunk 0; the third is
// chunk 1.
GroupPlan ThreeTensors(UpdateRule rule = Reduction::kAverage, bool one_epoch = false) {
  GroupSpec spec;
  spec.name = "model";
  for (int t = 0; t < 3; ++t) spec.tensors.push_back({absl::StrCat("t", t), DType::kF32, {16}});
  spec.rule = rule;
  spec.one_epoch = one_epoch;
  Layout layout = *Layout::Create(spec.tensors, 128);
  return {GroupId{3}, std::move(spec), std::move(layout), {ServerIndex{0}, ServerIndex{0}}};
}

class TensorCollectorTest : public testing::Test {
 protected:
  static constexpr Identity kIdentity{Generation{2}, MemberId{5}, Incarnation{77}};

  absl::Status Push(TensorCollector& collector, uint32_t tensor, Destination result = {}) {
    return collector.Collect(TensorId{tensor}, In(tensor), result);
  }
  absl::Status Skip(TensorCollector& collector, uint32_t tensor, Destination result = {}) {
    return collector.Collect(TensorId{tensor}, std::nullopt, result);
  }
  absl::Span<const std::byte> In(uint32_t tensor) const {
    return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values_[tensor].data()), 64);
  }

  const std::vector<std::vector<float>> values_ = {3, std::vector<float>(16, 1)};
  const GroupPlan plan_ = ThreeTensors();
  TensorCollector collector_{plan_, kIdentity};
};

TEST_F(TensorCollectorTest, AChunkIsCompleteWhenItsLastTensorIsIn) {
  ASSERT_THAT(Push(collector_, 1), IsOk());
  EXPECT_FALSE(collector_.IsComplete(kFirst));
  EXPECT_EQ(collector_.FindAwaited(kFirst).name, "t0");
  ASSERT_THAT(Skip(collector_, 0), IsOk());
  EXPECT_TRUE(collector_.IsComplete(kFirst));
  EXPECT_FALSE(collector_.IsComplete(kSecond));
  EXPECT_EQ(collector_.collected(), 2u);
}

TEST_F(TensorCollectorTest, AContributionHasTheValuesThatWerePushedAndNamesTheOthers) {
  std::vector<float> result(16);
  ASSERT_THAT(collector_.SetWeight(3), IsOk());
  ASSERT_THAT(Push(collector_, 0), IsOk());
  ASSERT_THAT(Skip(collector_, 1), IsOk());
  const Contribution contribution = collector_.ContributionTo(kFirst, 9);
  EXPECT_EQ(contribution.header.round, Round{1});
  EXPECT_EQ(contribution.header.member, MemberId{5});
  EXPECT_EQ(contribution.header.epoch, 9u);
  EXPECT_EQ(contribution.header.weight, 3);
  EXPECT_THAT(contribution.header.absent_spans, ElementsAre(1));
  EXPECT_TRUE(contribution.header.without_result);
  ASSERT_EQ(contribution.spans.size(), 1u);
  EXPECT_EQ(contribution.spans[0].data(), In(0).data());
}

TEST_F(TensorCollectorTest, AChunkWhoseTensorsAreAllSkippedIsASkip) {
  ASSERT_THAT(Skip(collector_, 2, Destination::InPlace()), IsOk());
  const Contribution contribution = collector_.ContributionTo(kSecond, 9);
  EXPECT_TRUE(contribution.header.skip);
  EXPECT_THAT(contribution.header.absent_spans, IsEmpty());
  EXPECT_THAT(contribution.spans, IsEmpty());
  EXPECT_FALSE(contribution.header.without_result);
}

TEST_F(TensorCollectorTest, AResultInPlaceWithABufferStaysOnlyInSharedMemory) {
  std::vector<std::byte> results(64);
  const std::vector<std::byte> payload(128);
  UpdateFrame answer;
  answer.header.chunk = kFirst;
  answer.header.counts = {1, 1};
  answer.payload = {absl::MakeConstSpan(payload)};
  ASSERT_THAT(Push(collector_, 0, Destination::InPlace(absl::MakeSpan(results))), IsOk());
  ASSERT_THAT(Push(collector_, 1), IsOk());
  EXPECT_FALSE(collector_.StaysInPlace(answer));
  EXPECT_EQ(collector_.TargetsOf(answer)[0].to, results.data());
  answer.header.shared = SharedPiece{3, 0, 128};
  EXPECT_TRUE(collector_.StaysInPlace(answer));
  EXPECT_EQ(collector_.TargetsOf(answer)[0].to, nullptr);
  answer.header.codec = Codec::kBF16;
  EXPECT_FALSE(collector_.StaysInPlace(answer)) << "it has to be decoded";
  // Without a buffer it stays wherever it is.
  answer.header.shared.reset();
  collector_.Begin(Round{2});
  ASSERT_THAT(Push(collector_, 0, Destination::InPlace()), IsOk());
  ASSERT_THAT(Push(collector_, 1, absl::MakeSpan(results)), IsOk());
  EXPECT_TRUE(collector_.StaysInPlace(answer));
  EXPECT_EQ(collector_.TargetsOf(answer)[1].to, results.data());
}

TEST_F(TensorCollectorTest, ATensorIsCollectedOnceInARound) {
  ASSERT_THAT(Push(collector_, 2), IsOk());
  ExpectError(Skip(collector_, 2), absl::StatusCode::kFailedPrecondition,
              {"tensor \"t2\" has been pushed in step 1 of group \"model\""});
  ExpectError(collector_.SetWeight(2), absl::StatusCode::kFailedPrecondition, {"step 1"});
  collector_.Begin(Round{2});
  EXPECT_EQ(collector_.collected(), 0u);
  EXPECT_THAT(Skip(collector_, 2), IsOk());
}

TEST_F(TensorCollectorTest, RefusesWhatIsNotATensorOfTheGroup) {
  ExpectError(collector_.CheckArguments(TensorId{3}, std::nullopt),
              absl::StatusCode::kInvalidArgument, {"tensor 3", "which has 3"});
  ExpectError(collector_.CheckArguments(TensorId{0}, In(0).first(60)),
              absl::StatusCode::kInvalidArgument, {"\"t0\" has 60 bytes", "64 bytes"});
  EXPECT_THAT(collector_.CheckArguments(TensorId{0}, In(0)), IsOk());
}

TEST_F(TensorCollectorTest, AContributionThatDependsOnTheMembersNeedsAnEpochInEachRound) {
  const GroupPlan plan = ThreeTensors(Reduction::kAverage, /*one_epoch=*/true);
  TensorCollector collector(plan, kIdentity);
  ExpectError(Push(collector, 0), absl::StatusCode::kFailedPrecondition, {"BeginStep"});
  collector.PinEpoch(7);
  ASSERT_THAT(Push(collector, 2), IsOk());
  EXPECT_EQ(collector.ContributionTo(kSecond, 9).header.epoch, 7u);
  collector.Begin(Round{2});
  EXPECT_EQ(collector.pinned_epoch(), std::nullopt);
}

TEST_F(TensorCollectorTest, DataEndsOnlyBetweenSteps) {
  EXPECT_EQ(*collector_.EndData(), Round{0}) << "nothing has been contributed to round 1";
  ExpectError(Push(collector_, 0), absl::StatusCode::kFailedPrecondition, {"ended its data"});
  ASSERT_THAT(Skip(collector_, 0), IsOk());
  ExpectError(collector_.EndData(), absl::StatusCode::kFailedPrecondition, {"\"t1\""});
  ASSERT_THAT(Skip(collector_, 1), IsOk());
  ASSERT_THAT(Skip(collector_, 2), IsOk());
  EXPECT_EQ(*collector_.EndData(), Round{1});
}

TEST_F(TensorCollectorTest, TheTargetsOfAnAnswerAreTheBuffersOfTensorsWithContributors) {
  std::vector<std::byte> results(128);
  ASSERT_THAT(Push(collector_, 0, absl::MakeSpan(results).first(64)), IsOk());
  ASSERT_THAT(Push(collector_, 1, absl::MakeSpan(results).subspan(64)), IsOk());
  UpdateFrame answer;
  answer.header.counts = {2, 0};
  EXPECT_THAT(collector_.TargetsOf(answer), IsEmpty()) << "the answer has no payload";
  const std::vector<std::byte> payload(128);
  answer.payload = {absl::MakeConstSpan(payload)};
  const std::vector<Target> targets = collector_.TargetsOf(answer);
  ASSERT_EQ(targets.size(), 2u);
  EXPECT_EQ(targets[0].to, results.data());
  EXPECT_EQ(targets[1].to, nullptr);
  EXPECT_EQ(targets[1].bytes, 64u);
}

// The length of the buffer is the limit of contributors for whoever reads it.
TEST_F(TensorCollectorTest, AGatherNeedsRoomForAllContributorsAlsoWithoutPayload) {
  const GroupPlan plan = ThreeTensors(Gather());
  TensorCollector collector(plan, kIdentity);
  std::vector<std::byte> results(128);
  ASSERT_THAT(Push(collector, 2, absl::MakeSpan(results)), IsOk());
  UpdateFrame answer;
  answer.header.chunk = kSecond;
  answer.header.contributors = {0, 1};
  EXPECT_THAT(collector.CheckRoom(answer), IsOk());
  answer.header.contributors = {0, 1, 2};
  ExpectError(collector.CheckRoom(answer), absl::StatusCode::kInvalidArgument,
              {"room for 2 contributions", "3 members"});
}

}  // namespace
}  // namespace syncgrads::client
