#include "client/rounds/chunks_in_flight.h"

#include <memory>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace syncgrads::client {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr ChunkId kFirst{0}, kSecond{1};

class ChunksInFlightTest : public testing::Test {
 protected:
  bool IsOver() const {
    ChunksInFlight::Range range = chunks_.all();
    return chunks_.IsOver(range);
  }
  // Takes a chunk through all of its states.
  void Finish(ChunkId chunk) {
    chunks_.Send(chunk, false);
    chunks_.Accept(chunk, {});
    EXPECT_TRUE(chunks_.Release(chunk).has_value());
    chunks_.Complete(chunk);
  }

  ChunksInFlight chunks_{2};
};

TEST_F(ChunksInFlightTest, AChunkIsDoneWhenItsAnswerHasBeenCopiedAfterTheRelease) {
  EXPECT_EQ(chunks_.FindCollecting(chunks_.all()), kFirst);
  chunks_.Send(kFirst, false);
  EXPECT_EQ(chunks_.FindCollecting(chunks_.all()), kSecond);
  EXPECT_TRUE(chunks_.IsUnanswered(kFirst));
  EXPECT_THAT(chunks_.FindSent(chunks_.all()), ElementsAre(kFirst));

  auto memory = std::make_shared<const int>(1);
  chunks_.Accept(kFirst, {{}, memory});
  EXPECT_FALSE(chunks_.IsUnanswered(kFirst));
  EXPECT_EQ(chunks_.in_use(), 1u);

  const std::optional<ChunkAnswer> answer = chunks_.Release(kFirst);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->memory, memory);
  EXPECT_TRUE(chunks_.has_under_way());
  EXPECT_EQ(chunks_.in_use(), 1u) << "the answer is being copied";

  chunks_.Complete(kFirst);
  EXPECT_EQ(chunks_.in_use(), 0u);
  EXPECT_FALSE(chunks_.has_under_way());
  EXPECT_TRUE(chunks_.Outcome({0, 1}).ok());
  EXPECT_EQ(chunks_.Outcome(chunks_.all()).code(), absl::StatusCode::kUnavailable);
}

TEST_F(ChunksInFlightTest, ARangeIsOverWhenAllItsChunksAreDoneOrOneHasFailed) {
  Finish(kFirst);
  ChunksInFlight::Range range = chunks_.all();
  EXPECT_FALSE(chunks_.IsOver(range));
  EXPECT_EQ(range.first, 1u) << "chunk 0 need not be looked at again";
  Finish(kSecond);
  EXPECT_TRUE(chunks_.IsOver(range));

  chunks_.Begin();
  EXPECT_FALSE(IsOver());
  chunks_.Fail(kSecond, absl::AbortedError("refused"));
  EXPECT_TRUE(IsOver());
  ChunksInFlight::Range first{0, 1};
  EXPECT_FALSE(chunks_.IsOver(first));
}

TEST_F(ChunksInFlightTest, AChunkThatIsReleasedWithoutAnAnswerIsNotInUse) {
  chunks_.Send(kFirst, false);
  EXPECT_FALSE(chunks_.Release(kFirst).has_value());
  EXPECT_FALSE(chunks_.is_in_use(kFirst));
  EXPECT_FALSE(IsOver());
}

TEST_F(ChunksInFlightTest, AFailedChunkStaysInUseUntilItIsReleased) {
  chunks_.Send(kFirst, false);
  chunks_.Accept(kFirst, {});
  chunks_.Fail(kFirst, absl::CancelledError("over"));
  EXPECT_TRUE(chunks_.is_in_use(kFirst));
  EXPECT_FALSE(chunks_.Release(kFirst).has_value()) << "the answer must not be copied any more";
  EXPECT_EQ(chunks_.in_use(), 0u);
}

TEST_F(ChunksInFlightTest, AnAnswerThatIsBeingCopiedDoesNotFail) {
  chunks_.Send(kFirst, false);
  chunks_.Accept(kFirst, {});
  ASSERT_TRUE(chunks_.Release(kFirst).has_value());
  chunks_.Fail(kFirst, absl::CancelledError("over"));
  chunks_.Complete(kFirst);
  EXPECT_FALSE(chunks_.has_failed());
  EXPECT_TRUE(chunks_.Outcome({0, 1}).ok());
}

TEST_F(ChunksInFlightTest, AFailureIsReportedBeforeItIsRetried) {
  chunks_.Send(kSecond, false);
  chunks_.Fail(kSecond, absl::AbortedError("refused"));
  chunks_.Fail(kSecond, absl::CancelledError("later"));
  EXPECT_EQ(chunks_.FirstFailure(), absl::AbortedError("refused"));
  EXPECT_FALSE(chunks_.IsReportedFailure(kSecond));
  EXPECT_EQ(chunks_.Outcome(chunks_.all()), absl::AbortedError("refused"));
  EXPECT_TRUE(chunks_.IsReportedFailure(kSecond));
  chunks_.Release(kSecond);
  chunks_.Retry(kSecond);
  EXPECT_FALSE(chunks_.has_failed());
  EXPECT_THAT(chunks_.FindSent(chunks_.all()), IsEmpty());
  Finish(kFirst);
  Finish(kSecond);
  EXPECT_TRUE(chunks_.Outcome(chunks_.all()).ok());
}

}  // namespace
}  // namespace syncgrads::client
