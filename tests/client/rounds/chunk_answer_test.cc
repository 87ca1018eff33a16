#include "client/rounds/chunk_answer.h"

#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads::client {
namespace {

constexpr Generation kGeneration{2};

// Makes a group of two f32 tensors of 4 elements in one chunk.
GroupPlan OneChunk(UpdateRule rule = Reduction::kAverage) {
  GroupSpec spec;
  spec.name = "model";
  spec.tensors = {{"a", DType::kF32, {4}}, {"b", DType::kF32, {4}}};
  spec.rule = rule;
  Layout layout = *Layout::Create(spec.tensors, 0);
  return {GroupId{3}, std::move(spec), std::move(layout), {ServerIndex{0}}};
}

class ChunkAnswerTest : public testing::Test {
 protected:
  ChunkAnswerTest() {
    answer_.header.generation = kGeneration;
    answer_.header.counts = {1, 1};
    answer_.header.contributors = {0};
    answer_.payload = {Payload(32)};
  }

  absl::Span<const std::byte> Payload(size_t bytes, size_t offset = 0) const {
    return absl::MakeConstSpan(*memory_).subspan(offset, bytes);
  }
  absl::Status Check(bool without_result = false, const GroupPlan& plan = OneChunk()) const {
    const Compressor compressor(plan);
    SYNCGRADS_RETURN_IF_ERROR(CheckPayload(plan, answer_, compressor));
    return CheckAnswer(plan, kGeneration, answer_, without_result, compressor);
  }

  const std::shared_ptr<const std::vector<std::byte>> memory_ =
      std::make_shared<const std::vector<std::byte>>(64, std::byte{5});
  UpdateFrame answer_;
};

TEST_F(ChunkAnswerTest, AnAnswerHasOneCountForEachSpanAndTheChunksBytes) {
  EXPECT_THAT(Check(), IsOk());
  EXPECT_THAT(Check(/*without_result=*/true), IsOk()) << "a result may come without a request";
  answer_.payload = {Payload(28)};
  ExpectError(Check(), absl::StatusCode::kInvalidArgument, {"28 bytes", "32 were expected"});
  answer_.payload = {Payload(32)};
  answer_.header.counts = {1};
  ExpectError(Check(), absl::StatusCode::kInvalidArgument, {"1 counts", "2 spans"});
}

TEST_F(ChunkAnswerTest, AnAnswerIsOfTheJobsGenerationAndOfAChunkOfTheGroup) {
  answer_.header.generation = Generation{1};
  ExpectError(Check(), absl::StatusCode::kInvalidArgument, {"generation 1", "is 2"});
  answer_.header.chunk = ChunkId{1};
  ExpectError(Check(), absl::StatusCode::kInvalidArgument, {"chunk 1", "which has 1"});
}

TEST_F(ChunkAnswerTest, ARefusalNeedsNoPayload) {
  answer_ = UpdateFrame();
  answer_.header.error = absl::AbortedError("refused");
  EXPECT_THAT(Check(), IsOk());
}

TEST_F(ChunkAnswerTest, AResultWithoutContributorsHasNoPayload) {
  answer_.header.counts = {0, 0};
  answer_.header.contributors.clear();
  answer_.payload.clear();
  EXPECT_THAT(Check(), IsOk());
  EXPECT_THAT(Check(false, OneChunk(Gather())), IsOk());
}

TEST_F(ChunkAnswerTest, AGatherHasThePayloadOfEachContributor) {
  answer_.header.counts = {2, 2};
  answer_.header.contributors = {0, 3};
  answer_.payload = {Payload(64)};
  EXPECT_THAT(Check(false, OneChunk(Gather())), IsOk());
  EXPECT_FALSE(Check().ok());
  answer_.payload.clear();
  ExpectError(Check(false, OneChunk(Gather())), absl::StatusCode::kInvalidArgument,
              {"0 bytes", "64 were expected"});
  EXPECT_THAT(Check(/*without_result=*/true, OneChunk(Gather())), IsOk());
}

TEST_F(ChunkAnswerTest, AGatherCountsEachContributorInEachSpan) {
  answer_.header.counts = {0, 0};
  answer_.header.contributors.resize(100'000);
  std::iota(answer_.header.contributors.begin(), answer_.header.contributors.end(), 0);
  answer_.payload.clear();
  for (const bool without_result : {false, true}) {
    ExpectError(Check(without_result, OneChunk(Gather())), absl::StatusCode::kInvalidArgument,
                {"group \"model\"", "0 contributors to span 0", "lists 100000"});
  }
  answer_.header.counts = {2, 1};
  answer_.header.contributors = {0, 3};
  answer_.payload = {Payload(64)};
  ExpectError(Check(false, OneChunk(Gather())), absl::StatusCode::kInvalidArgument,
              {"1 contributors to span 1", "lists 2"});
}

TEST_F(ChunkAnswerTest, AReductionCountsNoMoreContributorsThanItLists) {
  answer_.header.counts = {0, 2};
  answer_.header.contributors = {0, 3, 4};
  EXPECT_THAT(Check(), IsOk()) << "members may leave out spans";
  answer_.header.counts = {0, 4};
  ExpectError(Check(), absl::StatusCode::kInvalidArgument, {"4 contributors to span 1", "lists 3"});
}

TEST_F(ChunkAnswerTest, WithStalenessOnlyTheReceiverIsCounted) {
  GroupPlan plan = OneChunk(Optimizer(Sgd()));
  plan.spec.policy = Staleness();
  EXPECT_THAT(Check(false, plan), IsOk());
  answer_.header.contributors.clear();
  EXPECT_THAT(Check(false, plan), IsOk()) << "it skipped round 0, or has no rank any more";
  answer_.header.counts = {1, 2};
  ExpectError(Check(false, plan), absl::StatusCode::kInvalidArgument,
              {"2 contributors to span 1", "at most 1"});
  answer_.header.counts = {1, 1};
  answer_.header.contributors = {0, 1};
  ExpectError(Check(false, plan), absl::StatusCode::kInvalidArgument,
              {"2 contributors", "at most 1"});
}

TEST_F(ChunkAnswerTest, TheRanksOfContributorsAscend) {
  answer_.header.counts = {2, 2};
  answer_.payload = {Payload(64)};
  for (const std::vector<uint32_t>& ranks : {std::vector<uint32_t>{2, 2}, {2, 1}}) {
    answer_.header.contributors = ranks;
    ExpectError(Check(false, OneChunk(Gather())), absl::StatusCode::kInvalidArgument,
                {absl::StrCat("rank ", ranks[1], " after rank 2")});
  }
}

TEST_F(ChunkAnswerTest, AnAnswerIsCopiedToItsTargetsAndItsMemoryReleased) {
  const GroupPlan plan = OneChunk();
  std::vector<std::byte> result(16);
  ChunkAnswer answer{answer_, memory_};
  Unpack(plan.layout.chunk(ChunkId{0}), {{nullptr, 16}, {result.data(), 16}}, false,
         Compressor(plan), answer);
  EXPECT_EQ(result, std::vector<std::byte>(16, std::byte{5}));
  EXPECT_EQ(answer.memory, nullptr);
}

TEST_F(ChunkAnswerTest, AResultInPlaceIsCopiedOnlyIfAPieceCutsAnElement) {
  const GroupPlan plan = OneChunk();
  const Chunk& chunk = plan.layout.chunk(ChunkId{0});
  answer_.payload = {Payload(12), Payload(20, 12)};
  ChunkAnswer answer{answer_, memory_};
  Unpack(chunk, {}, true, Compressor(plan), answer);
  EXPECT_EQ(answer.memory, memory_);
  EXPECT_EQ(answer.update.payload.size(), 2u);
  answer.update.payload = {Payload(13), Payload(19, 13)};
  Unpack(chunk, {}, true, Compressor(plan), answer);
  EXPECT_NE(answer.memory, memory_);
  ASSERT_EQ(answer.update.payload.size(), 1u);
  EXPECT_EQ(answer.update.payload[0].size(), 32u);
}

}  // namespace
}  // namespace syncgrads::client
