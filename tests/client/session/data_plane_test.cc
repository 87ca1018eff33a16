// Tests which messages the data plane sends in a round, their order, and where results are written.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/session/wait.h"
#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/session/data_plane_fixture.h"

namespace syncgrads::client {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(DataPlaneTest, SaysHelloBeforeAnythingElse) {
  Start();
  auto rounds = Add(Plan({4}, 1024));
  std::vector<float> values = {1, 2, 3, 4};
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  ASSERT_EQ(stream().headers.size(), 1u);
  ASSERT_TRUE(stream().headers[0].hello.has_value());
  EXPECT_EQ(stream().headers[0].hello->job, "job");
  stream().Accept();
  ASSERT_EQ(stream().headers.size(), 2u);
  const PushHeader& push = stream().headers[1];
  EXPECT_EQ(push.generation, Generation{2});
  EXPECT_EQ(push.group, GroupId{3});
  EXPECT_EQ(push.round, Round{1});
  EXPECT_EQ(push.member, MemberId{5});
  EXPECT_EQ(push.incarnation, Incarnation{77});
  EXPECT_EQ(push.epoch, 9u);
  EXPECT_FALSE(push.skip);
  EXPECT_THAT(push.absent_spans, IsEmpty());
}

TEST_F(DataPlaneTest, SendsAChunkWhenItsLastTensorIsIn) {
  Connect();
  auto rounds = Add(Plan({2, 1, 3}, 1024));
  std::vector<float> a = {1, 2}, b = {3}, c = {4, 5, 6};
  ASSERT_TRUE(rounds->Push(TensorId{2}, In(c), Out(c)).ok());
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(a), Out(a)).ok());
  EXPECT_EQ(stream().headers.size(), 1u);
  const absl::Status unsent = rounds->CheckSent(rounds->ChunksOf(TensorId{0}));
  EXPECT_EQ(unsent.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(unsent.message()), HasSubstr("\"t1\""));
  ASSERT_TRUE(rounds->Skip(TensorId{1}, Out(b)).ok());
  ASSERT_EQ(stream().headers.size(), 2u);
  EXPECT_THAT(stream().headers[1].absent_spans, ElementsAre(1));
  // The payload does not have the elements of the absent span.
  const float expected[] = {1, 2, 4, 5, 6};
  EXPECT_EQ(stream().sent[1].substr(stream().sent[1].size() - 20),
            std::string(reinterpret_cast<const char*>(expected), 20));
  stream().Accept();
  stream().Receive(Answer(stream().headers[1], {2, 0, 1}, {10, 20, -1, 40, 50, 60}));
  EXPECT_TRUE(rounds->Outcome(rounds->AllChunks()).ok());
  EXPECT_THAT(a, ElementsAre(10, 20));
  EXPECT_THAT(b, ElementsAre(3));  // no worker contributed, so the buffer is unchanged
  EXPECT_THAT(c, ElementsAre(40, 50, 60));
  EXPECT_EQ(rounds->CountContributors(TensorId{2}).most, 1u);
}

TEST_F(DataPlaneTest, SendsASkipWithoutPayloadAndWantsTheResult) {
  Connect();
  auto rounds = Add(Plan({2, 1}, 1024));
  std::vector<float> a(2), b(1);
  ASSERT_TRUE(rounds->SetWeight(3).ok());
  ASSERT_TRUE(rounds->Skip(TensorId{0}, Out(a)).ok());
  ASSERT_TRUE(rounds->Skip(TensorId{1}, Out(b)).ok());
  const PushHeader& push = stream().headers[1];
  EXPECT_TRUE(push.skip);
  EXPECT_FALSE(push.without_result);
  EXPECT_THAT(push.absent_spans, IsEmpty());
  stream().Accept();
  stream().Receive(Answer(push, {1, 1}, {7, 8, 9}));
  EXPECT_THAT(a, ElementsAre(7, 8));
  EXPECT_THAT(b, ElementsAre(9));
}

TEST_F(DataPlaneTest, SendsTheNextChunkWhenTheLastIsAcceptedAndDoesNotWaitForAnswers) {
  Connect();
  auto rounds = Add(Plan({64}, 64));  // four chunks of 16 elements
  std::vector<float> values(64);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  for (uint32_t chunk = 0; chunk < 4; ++chunk) {
    ASSERT_EQ(stream().headers.size(), chunk + 2);
    EXPECT_EQ(stream().headers.back().chunk, ChunkId{chunk});
    stream().Accept();
  }
  EXPECT_EQ(stream().headers.size(), 5u);
}

TEST_F(DataPlaneTest, SendsFrontChunksFirstOfThoseThatAreReady) {
  Connect();
  auto rounds = Add(Plan({16, 16, 16, 16}, 64));  // one chunk for each tensor
  std::vector<float> values(16);
  // The backward pass produces gradients from the last tensor to the first.
  for (uint32_t t : {3, 2, 1, 0}) {
    ASSERT_TRUE(rounds->Push(TensorId{t}, In(values), Out(values)).ok());
  }
  for (int i = 0; i < 4; ++i) stream().Accept();
  std::vector<uint32_t> order;
  for (size_t i = 1; i < stream().headers.size(); ++i) {
    order.push_back(ToNumber(stream().headers[i].chunk));
  }
  EXPECT_THAT(order, ElementsAre(3, 0, 1, 2));  // chunk 3 was the only one ready when it was sent
}

TEST_F(DataPlaneTest, TakesAnswersInAnyOrder) {
  Connect();
  auto rounds = Add(Plan({32, 32}, 64));
  std::vector<float> a(32), b(32);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(a), Out(a)).ok());
  ASSERT_TRUE(rounds->Push(TensorId{1}, In(b), Out(b)).ok());
  for (int i = 0; i < 4; ++i) stream().Accept();
  for (size_t i : {4, 2, 1, 3}) {
    EXPECT_FALSE(rounds->EndRound().ok());
    stream().Receive(Answer(stream().headers[i], {1}, std::vector<float>(16, 1.0f * i)));
  }
  std::vector<float> expected_a(32, 1), expected_b(32, 3);
  std::fill(expected_a.begin() + 16, expected_a.end(), 2);
  std::fill(expected_b.begin() + 16, expected_b.end(), 4);
  EXPECT_EQ(a, expected_a);
  EXPECT_EQ(b, expected_b);
  EXPECT_TRUE(rounds->EndRound().ok());
  EXPECT_EQ(rounds->round(), Round{2});
}

TEST_F(DataPlaneTest, WantsNoPayloadWhereNoResultIsWanted) {
  Connect();
  auto rounds = Add(Plan({4}, 1024, Reduction::kSum));
  const std::vector<float> values(4);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(values), {}).ok());
  EXPECT_TRUE(stream().headers[1].without_result);
  stream().Accept();
  stream().Receive(Answer(stream().headers[1], {3}, {}));
  EXPECT_TRUE(rounds->Outcome(rounds->AllChunks()).ok());
  EXPECT_EQ(rounds->CountContributors(TensorId{0}).most, 3u);
}

TEST_F(DataPlaneTest, WritesParametersThatNobodyHadAGradientFor) {
  Connect();
  auto rounds = Add(Plan({4}, 1024, Optimizer(Sgd())));
  EXPECT_EQ(rounds->round(), Round{0});
  std::vector<float> values(4);
  ASSERT_TRUE(rounds->Skip(TensorId{0}, Out(values)).ok());
  stream().Accept();
  stream().Receive(Answer(stream().headers[1], {0}, {1, 2, 3, 4}));
  EXPECT_THAT(values, ElementsAre(1, 2, 3, 4));
}

TEST_F(DataPlaneTest, SetsToZeroThePartOfATensorThatNobodyContributedTo) {
  Connect();
  auto rounds = Add(Plan({32}, 64));
  std::vector<float> values(32, 5);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  stream().Accept();
  stream().Accept();
  stream().Receive(Answer(stream().headers[1], {2}, std::vector<float>(16, 1)));
  stream().Receive(Answer(stream().headers[2], {0}, {}));
  const Contributors contributors = rounds->CountContributors(TensorId{0});
  EXPECT_EQ(contributors.least, 0u);
  EXPECT_EQ(contributors.most, 2u);
  std::vector<float> expected(32, 1);
  std::fill(expected.begin() + 16, expected.end(), 0);
  EXPECT_EQ(values, expected);
}

TEST_F(DataPlaneTest, AbandonsWhatIsUnderWayAndWaitsForItsBuffers) {
  Connect();
  auto rounds = Add(Plan({2000}, 64 << 10));
  std::vector<float> values(2000, 1);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  stream().AcceptAndHold();
  plane_->Fail(absl::CancelledError("abandoned"));
  plane_->Close();
  EXPECT_TRUE(stream().cancelled);
  EXPECT_EQ(rounds->Outcome(rounds->AllChunks()).code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(rounds->AwaitReleased(MonotonicNow()));
  stream().held.clear();
  EXPECT_TRUE(rounds->AwaitReleased(MonotonicNow()));
  EXPECT_FALSE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  EXPECT_EQ(values, std::vector<float>(2000, 1));
}

TEST_F(DataPlaneTest, PutsTheServersWordsIntoTheDeadlinesError) {
  Connect(2);
  auto rounds = Add(Plan({32}, 64, Reduction::kAverage, 2));
  std::vector<float> values(32);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  RoundWait wait{.group = GroupId{3}, .round = Round{1}, .held_for = "it waits for w1"};
  RoundWait other{.group = GroupId{3}, .round = Round{2}, .held_for = "of another round"};
  transport_.explanation = std::vector<RoundWait>{wait, other};
  const absl::Status status =
      AwaitAnswers(*rounds, rounds->AllChunks(), absl::Milliseconds(60), *plane_);
  EXPECT_GE(MonotonicNow() - timers_.Now(), absl::Milliseconds(60));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("step 1 of group \"model\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 of 2 chunks"));
  const std::string both = absl::StrCat(ToString(wait), "; ", ToString(wait));
  EXPECT_THAT(std::string(status.message()), HasSubstr(both));
  EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("another round")));
  // If there is no connection to the server, the error states this.
  stream(0).Close(absl::UnavailableError("no route"));
  EXPECT_THAT(
      std::string(
          AwaitAnswers(*rounds, rounds->AllChunks(), absl::Milliseconds(20), *plane_).message()),
      HasSubstr("server 0 at server0 is not available: no route"));
}

TEST_F(DataPlaneTest, GathersInPiecesAndNoticesAMemberLostHalfWay) {
  Connect();
  auto rounds = Add(Plan({32}, 64, Gather()));
  const std::vector<float> mine(32, 1);
  std::vector<float> all(64);
  const auto answer = [&](size_t i, std::vector<uint32_t> ranks, const std::vector<float>& parts) {
    UpdateHeader header;
    header.generation = Generation{2};
    header.group = GroupId{3};
    header.chunk = stream().headers[i].chunk;
    header.round = stream().headers[i].round;
    header.counts = {static_cast<uint32_t>(ranks.size())};
    header.contributors = std::move(ranks);
    std::string payload;
    for (float part : parts) {
      const std::vector<float> values(16, part);
      payload.append(reinterpret_cast<const char*>(values.data()), 64);
    }
    return EncodeHeader(header, payload.size()) + payload;
  };
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(mine), Out(all)).ok());
  stream().Accept();
  stream().Accept();
  stream().Receive(answer(1, {0, 2}, {10, 20}));
  stream().Receive(answer(2, {0, 2}, {11, 21}));
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(all[i], 10.0f * (1 + i / 32) + (i / 16) % 2) << i;
  }
  ASSERT_TRUE(rounds->GatheredRanks().ok());
  EXPECT_THAT(*rounds->GatheredRanks(), ElementsAre(0, 2));
  ASSERT_TRUE(rounds->EndRound().ok());

  ASSERT_TRUE(rounds->Push(TensorId{0}, In(mine), Out(all)).ok());
  stream().Accept();
  stream().Accept();
  stream().Receive(answer(3, {0, 2}, {10, 20}));
  stream().Receive(answer(4, {0}, {11}));
  EXPECT_EQ(rounds->GatheredRanks().status().code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(rounds->EndRound().ok());

  // If the result is longer than the buffer, the operation fails.
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(mine), Out(all)).ok());
  stream().Accept();
  stream().Accept();
  stream().Receive(answer(5, {0, 1, 2}, {1, 2, 3}));
  EXPECT_EQ(rounds->Outcome(rounds->AllChunks()).code(), absl::StatusCode::kInvalidArgument);
}

// The members of epoch 9 are three; epoch 10 has not arrived.
TEST_F(DataPlaneTest, ClosesAStreamThatGathersFromOthersThanTheMembers) {
  Connect();
  auto rounds = Add(Plan({4}, 1024, Gather()));
  const std::vector<float> mine(4, 1);
  std::vector<float> all(12, 7);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(mine), Out(all)).ok());
  const auto answer = [&](uint64_t epoch, uint32_t count, std::vector<uint32_t> ranks,
                          size_t payload) {
    const PushHeader& push = stream().headers[1];
    UpdateHeader header;
    header.generation = push.generation;
    header.group = push.group;
    header.chunk = push.chunk;
    header.round = push.round;
    header.epoch = epoch;
    header.counts = {count};
    header.contributors = std::move(ranks);
    return EncodeHeader(header, payload) + std::string(payload, 'x');
  };
  std::vector<uint32_t> many(100'000);
  std::iota(many.begin(), many.end(), 0);
  stream().Accept();
  const std::string malformed[] = {answer(9, 0, many, 0), answer(9, 100'000, many, 0),
                                   answer(9, 2, {0, 3}, 32), answer(9, 2, {1, 0}, 32)};
  for (size_t i = 0; i < std::size(malformed); ++i) {
    FakeDataStream& current = *transport_.data.back();
    current.Accept();
    current.Receive(malformed[i]);
    EXPECT_TRUE(current.cancelled) << i;
    EXPECT_FALSE(rounds->IsOver(rounds->AllChunks())) << i;
    EXPECT_THAT(all, Each(7)) << i;
    current.Close(absl::CancelledError(""));
    timers_.Advance(absl::Seconds(1));
    transport_.data.back()->Accept();
  }
  transport_.data.back()->Accept();
  transport_.data.back()->Receive(answer(10, 2, {0, 3}, 32));
  EXPECT_TRUE(rounds->Outcome(rounds->AllChunks()).ok());
  EXPECT_THAT(*rounds->GatheredRanks(), ElementsAre(0, 3));
}

TEST_F(DataPlaneTest, RefusesAPlanThatNamesAServerThatThereIsNot) {
  Start();
  GroupPlan plan = Plan({4}, 1024);
  plan.servers[0] = ServerIndex{1};
  EXPECT_EQ(plane_->AddGroup(std::make_shared<const GroupPlan>(std::move(plan))).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// A result of the one would be written to the tensors of the other.
TEST_F(DataPlaneTest, RefusesAPlanWithTheNumberOfAnotherGroup) {
  Start();
  const GroupPlan large = Plan({1000}, 4096);
  const std::shared_ptr<GroupRounds> rounds = Add(large);
  const auto status = [this](GroupPlan plan) {
    return plane_->AddGroup(std::make_shared<const GroupPlan>(std::move(plan))).status();
  };
  GroupPlan renamed = large;
  renamed.spec.name = "small";
  EXPECT_EQ(status(renamed).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status(renamed).message()),
              ::testing::AllOf(::testing::HasSubstr("\"small\" has number 3"),
                               ::testing::HasSubstr("\"model\"")));
  EXPECT_FALSE(status(Plan({4}, 4096)).ok());
  EXPECT_EQ(Add(large), rounds) << "the same group is registered again";
}

}  // namespace
}  // namespace syncgrads::client
