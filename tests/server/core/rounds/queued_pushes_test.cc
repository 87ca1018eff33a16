#include "server/core/rounds/queued_pushes.h"

#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/rounds/chunk_answers.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class QueuedPushesTest : public ::testing::Test {
 protected:
  absl::Status Add(uint32_t member, uint64_t round, const std::shared_ptr<RecordingSink>& sink,
                   uint64_t epoch = 1) {
    left_ = sink;
    PushHeader header = PushOf(member, round);
    header.epoch = epoch;
    return queued_.Add(header, PayloadOf(BytesOf<double>({1})), left_);
  }

  QueuedPushes queued_;
  // What Add has left of the sink that it was given.
  std::shared_ptr<AnswerSink> left_;
  const std::shared_ptr<RecordingSink> first_ = std::make_shared<RecordingSink>();
  const std::shared_ptr<RecordingSink> second_ = std::make_shared<RecordingSink>();
};

TEST_F(QueuedPushesTest, ArePassedOnOnceInTheOrderOfTheirArrival) {
  for (uint32_t member : {2, 0, 1}) ASSERT_THAT(Add(member, 1, first_), IsOk());
  const std::vector<QueuedPushes::Push> taken = queued_.Take();
  ASSERT_EQ(taken.size(), 3u);
  EXPECT_EQ(taken[0].header.member, MemberId{2});
  EXPECT_EQ(taken[1].header.member, MemberId{0});
  EXPECT_EQ(taken[2].header.member, MemberId{1});
  EXPECT_THAT(queued_.Take(), IsEmpty());
  EXPECT_THAT(Add(2, 5, first_), IsOk()) << "the member has none any more";
}

TEST_F(QueuedPushesTest, AMemberThatRepeatsItsPushHasOneAndAnAnswerOnEachStream) {
  ASSERT_THAT(Add(0, 1, first_), IsOk());
  for (int i = 0; i < 1000; ++i) ASSERT_THAT(Add(0, 1, second_), IsOk());
  const std::vector<QueuedPushes::Push> taken = queued_.Take();
  ASSERT_EQ(taken.size(), 1u);
  const ChunkAnswers answers(Generation{1}, GroupId{0}, ChunkId{0});
  taken[0].sink->Send(answers.Refusal(Round{1}, absl::AbortedError("")), false);
  EXPECT_EQ(first_->count(), 1u);
  EXPECT_GE(second_->count(), 1u);
}

TEST_F(QueuedPushesTest, APushToAnotherRoundIsRefused) {
  ASSERT_THAT(Add(0, 1, first_), IsOk());
  const absl::Status refused = Add(0, 2, second_);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("member 0 pushes round 2 in epoch 1, but its push of "
                                           "round 1 in epoch 1 waits"));
  EXPECT_EQ(left_, second_) << "the caller answers it";
  EXPECT_EQ(queued_.Take().size(), 1u);
}

TEST_F(QueuedPushesTest, APushMadeInAnotherEpochIsNoRetry) {
  ASSERT_THAT(Add(0, 1, first_, /*epoch=*/1), IsOk());
  EXPECT_EQ(Add(0, 1, second_, /*epoch=*/2).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(left_, second_);
}

}  // namespace
}  // namespace syncgrads::server
