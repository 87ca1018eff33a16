#include "client/rounds/step_results.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Makes a group of one f32 tensor of 32 elements in two chunks.
GroupPlan TwoChunks(UpdateRule rule) {
  GroupSpec spec;
  spec.name = "model";
  spec.tensors = {{"w", DType::kF32, {32}}};
  spec.rule = rule;
  Layout layout = *Layout::Create(spec.tensors, 64);
  return {GroupId{3}, std::move(spec), std::move(layout), {ServerIndex{0}, ServerIndex{0}}};
}

class StepResultsTest : public testing::Test {
 protected:
  // Sets the result of a chunk to which these ranks have contributed.
  void Set(uint32_t chunk, std::vector<uint32_t> ranks, uint64_t epoch = 1) {
    UpdateFrame answer;
    answer.header.chunk = ChunkId{chunk};
    answer.header.epoch = epoch;
    answer.header.counts = {static_cast<uint32_t>(ranks.size())};
    answer.header.contributors = std::move(ranks);
    results_.Set(std::move(answer), /*in_place=*/false, nullptr, nullptr);
  }
  void SetInPlace(uint32_t chunk, uint32_t count) {
    UpdateFrame answer;
    answer.header.chunk = ChunkId{chunk};
    answer.header.counts = {count};
    if (count > 0) answer.payload = {absl::MakeConstSpan(*memory_).subspan(64 * chunk, 64)};
    results_.Set(std::move(answer), /*in_place=*/true, memory_, nullptr);
  }

  const std::shared_ptr<const std::vector<std::byte>> memory_ =
      std::make_shared<const std::vector<std::byte>>(128, std::byte{5});
  const GroupPlan plan_ = TwoChunks(Reduction::kAverage);
  StepResults results_{plan_};
};

TEST_F(StepResultsTest, ThePartWithoutContributorsBecomesZeros) {
  Set(0, {0, 1});
  Set(1, {});
  std::vector<std::byte> result(128, std::byte{7});
  const Contributors contributors = results_.Count(TensorId{0}, absl::MakeSpan(result));
  EXPECT_EQ(contributors.least, 0u);
  EXPECT_EQ(contributors.most, 2u);
  EXPECT_EQ(result[63], std::byte{7});
  EXPECT_EQ(result[64], std::byte{0});
}

TEST_F(StepResultsTest, AResultToWhichNobodyContributedIsLeftAsItIs) {
  Set(0, {});
  Set(1, {});
  std::vector<std::byte> result(128, std::byte{7});
  EXPECT_EQ(results_.Count(TensorId{0}, absl::MakeSpan(result)).most, 0u);
  EXPECT_EQ(result, std::vector<std::byte>(128, std::byte{7}));
}

TEST_F(StepResultsTest, ResultsInPlaceAreKeptUntilTheNextContribution) {
  SetInPlace(0, 2);
  ExpectError(results_.InPlace(TensorId{0}), absl::StatusCode::kFailedPrecondition,
              {"\"w\"", "no result in place"});
  SetInPlace(1, 2);
  const auto pieces = results_.InPlace(TensorId{0});
  ASSERT_THAT(pieces, IsOk());
  ASSERT_EQ(pieces->size(), 1u) << "adjacent pieces are one";
  EXPECT_EQ(pieces->front().data(), memory_->data());
  EXPECT_EQ(pieces->front().size(), 128u);
  EXPECT_EQ(results_.Clear(ChunkId{0}), memory_);
  EXPECT_FALSE(results_.InPlace(TensorId{0}).ok());
}

TEST_F(StepResultsTest, ZerosStandForThePartInPlaceWithoutContributors) {
  SetInPlace(0, 1);
  SetInPlace(1, 0);
  const auto pieces = results_.InPlace(TensorId{0});
  ASSERT_THAT(pieces, IsOk());
  ASSERT_EQ(pieces->size(), 2u);
  EXPECT_EQ((*pieces)[1].size(), 64u);
  EXPECT_EQ((*pieces)[1][0], std::byte{0});
}

TEST_F(StepResultsTest, PartsThatWereCopiedAreInTheBuffer) {
  std::vector<std::byte> buffer(128, std::byte{7});
  SetInPlace(0, 2);
  EXPECT_FALSE(results_.InPlace(TensorId{0}).ok());
  UpdateFrame answer;
  answer.header.chunk = ChunkId{1};
  answer.header.counts = {2};
  results_.SetCopied(std::move(answer), {{buffer.data() + 64, 64}});
  const auto pieces = results_.InPlace(TensorId{0});
  ASSERT_THAT(pieces, IsOk());
  ASSERT_EQ(pieces->size(), 2u);
  EXPECT_EQ((*pieces)[0].data(), memory_->data());
  EXPECT_EQ((*pieces)[1].data(), buffer.data() + 64);
  EXPECT_EQ((*pieces)[1].size(), 64u);
  EXPECT_EQ(results_.MappingOf(TensorId{0}), nullptr);
}

TEST_F(StepResultsTest, ATensorThatWasNotRequestedHasNoCopy) {
  SetInPlace(0, 2);
  UpdateFrame answer;
  answer.header.chunk = ChunkId{1};
  answer.header.counts = {2};
  results_.SetCopied(std::move(answer), {{nullptr, 64}});
  ExpectError(results_.InPlace(TensorId{0}), absl::StatusCode::kFailedPrecondition,
              {"\"w\"", "no result in place"});
}

TEST_F(StepResultsTest, AClosingHasTheRanksOfAllChunksAndTheNewestEpoch) {
  Set(0, {0, 2}, 4);
  Set(1, {0, 2}, 3);
  StepResults::Closing closing = results_.FindClosing();
  EXPECT_TRUE(closing.whole);
  EXPECT_EQ(closing.epoch, 4u);
  EXPECT_THAT(closing.parts, IsEmpty());
  Set(1, {1, 2}, 3);
  closing = results_.FindClosing();
  EXPECT_FALSE(closing.whole);
  EXPECT_THAT(closing.contributors, ElementsAre(0, 1, 2));
  EXPECT_THAT(closing.parts, ElementsAre(ElementsAre(0, 2), ElementsAre(1, 2)));
  EXPECT_TRUE(results_.HasContributor(ChunkId{1}, 1));
  EXPECT_FALSE(results_.HasContributor(ChunkId{0}, 1));
}

TEST_F(StepResultsTest, AGatherHasTheSameRanksInAllChunks) {
  Set(0, {0, 1});
  Set(1, {0, 1});
  EXPECT_THAT(*results_.GatheredRanks(), ElementsAre(0, 1));
  Set(1, {0});
  ExpectError(results_.GatheredRanks(), absl::StatusCode::kAborted,
              {"chunk 0 has the contributions of ranks 0, 1", "chunk 1 those of ranks 0"});
}

}  // namespace
}  // namespace syncgrads::client
