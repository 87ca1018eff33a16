// Tests which messages the data plane sends again, and when: after a broken connection, a refusal,
// or a malformed answer.

#include <cstddef>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/session/data_plane_fixture.h"

namespace syncgrads::client {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST_F(DataPlaneTest, SendsTheSameBytesAgainAfterACut) {
  Connect();
  auto rounds = Add(Plan({2000, 5, 3000}, 64 << 10));
  std::vector<float> a(2000), b(5), c(3000);
  std::iota(a.begin(), a.end(), 0.0f);
  std::iota(c.begin(), c.end(), 5000.0f);
  ASSERT_TRUE(rounds->SetWeight(2.5).ok());
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(a), Out(a)).ok());
  ASSERT_TRUE(rounds->Push(TensorId{2}, In(c), Out(c)).ok());
  ASSERT_TRUE(rounds->Skip(TensorId{1}, Out(b)).ok());
  stream().Accept();
  const std::string sent = stream().sent[1];
  EXPECT_EQ(stream().headers[1].weight, 2.5);
  stream().Close(absl::UnavailableError("cut"));
  // The epoch has changed, but the message that is sent again must be the same bytes.
  plane_->SetEpoch(10);
  EXPECT_EQ(transport_.data.size(), 1u);
  timers_.Advance(absl::Milliseconds(50));
  ASSERT_EQ(transport_.data.size(), 2u);
  stream(1).Accept();
  ASSERT_EQ(stream(1).sent.size(), 2u);
  EXPECT_TRUE(stream(1).headers[0].hello.has_value());
  EXPECT_EQ(stream(1).sent[1], sent);
  stream(1).Accept();
  stream(1).Receive(Answer(stream(1).headers[1], {1, 0, 1}, std::vector<float>(5005, 4)));
  EXPECT_TRUE(rounds->Outcome(rounds->AllChunks()).ok());
  EXPECT_EQ(c, std::vector<float>(3000, 4));
}

TEST_F(DataPlaneTest, DoesNotSendWhatHasBeenAnsweredAgain) {
  Connect();
  auto rounds = Add(Plan({32}, 64));
  std::vector<float> values(32);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  stream().Accept();
  stream().Accept();
  stream().Receive(Answer(stream().headers[1], {1}, std::vector<float>(16, 1)));
  stream().Close(absl::UnavailableError("cut"));
  timers_.Advance(absl::Seconds(1));
  stream(1).Accept();
  ASSERT_EQ(stream(1).headers.size(), 2u);
  EXPECT_EQ(stream(1).headers[1].chunk, ChunkId{1});
}

TEST_F(DataPlaneTest, WritesAResultOverItsInputOnlyWhenNobodyReadsTheInput) {
  Connect();
  auto rounds = Add(Plan({2000}, 64 << 10));
  std::vector<float> values(2000, 1);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  stream().AcceptAndHold();  // the transport keeps the message
  FakeDataStream& old = stream();
  old.Close(absl::UnavailableError("cut"));
  timers_.Advance(absl::Milliseconds(50));
  stream(1).Accept();
  stream(1).Accept();
  // The answer arrives on the new stream while the old stream still holds the message.
  stream(1).Receive(Answer(stream(1).headers[1], {3}, std::vector<float>(2000, 9)));
  EXPECT_EQ(values, std::vector<float>(2000, 1));
  EXPECT_FALSE(rounds->IsOver(rounds->AllChunks()));
  old.held.clear();
  EXPECT_TRUE(rounds->IsOver(rounds->AllChunks()));
  EXPECT_EQ(values, std::vector<float>(2000, 9));
}

TEST_F(DataPlaneTest, IgnoresASecondAnswer) {
  Connect();
  auto rounds = Add(Plan({4}, 1024));
  std::vector<float> values(4);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  stream().Accept();
  stream().Receive(Answer(stream().headers[1], {1}, {1, 1, 1, 1}));
  stream().Receive(Answer(stream().headers[1], {1}, {2, 2, 2, 2}));
  EXPECT_THAT(values, ElementsAre(1, 1, 1, 1));
  EXPECT_FALSE(stream().cancelled);
}

TEST_F(DataPlaneTest, AsksALaterTimeAfterEachAnswerThatIsNone) {
  Connect();
  auto rounds = Add(Plan({4}, 1024));
  std::vector<float> values(4, 7);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  for (int delay : {50, 100, 200, 400, 800, 1000, 1000}) {
    FakeDataStream& current = *transport_.data.back();
    current.Accept();
    current.Accept();
    current.Receive(Answer(current.headers.back(), {1}, {1, 2, 3}));
    ASSERT_TRUE(current.cancelled);
    current.Close(absl::CancelledError(""));
    const size_t streams = transport_.data.size();
    timers_.Advance(absl::Milliseconds(delay - 1));
    EXPECT_EQ(transport_.data.size(), streams) << delay;
    timers_.Advance(absl::Milliseconds(1));
    ASSERT_EQ(transport_.data.size(), streams + 1) << delay;
  }
}

TEST_F(DataPlaneTest, ClosesAStreamThatBringsWhatIsNoAnswerAndAsksAgain) {
  const auto answers = [](const PushHeader& push) {
    PushHeader other = push;
    other.generation = Generation{8};
    UpdateHeader codec;
    codec.generation = push.generation;
    codec.group = push.group;
    codec.chunk = push.chunk;
    codec.round = push.round;
    codec.codec = static_cast<Codec>(7);
    codec.counts = {1};
    codec.contributors = {0};
    UpdateHeader shared = codec;
    shared.codec = Codec::kRaw;
    UpdateHeader uncounted = shared, unordered = shared;
    shared.shared = SharedPiece{0, 0, 16};  // this worker shares no memory
    uncounted.contributors = {};
    unordered.contributors = {1, 0};
    return std::vector<std::string>{
        std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12),
        Answer(push, {1, 1}, {1, 2, 3, 4}),  // two counts for one span
        Answer(push, {1}, {1, 2, 3}),        // too few elements
        Answer(push, {1}, {1, 2, 3, 4, 5}),
        Answer(push, {1}, {}),
        Answer(other, {1}, {1, 2, 3, 4}),
        EncodeHeader(codec, 16) + std::string(16, 'x'),
        EncodeHeader(shared, 0),
        EncodeHeader(uncounted, 16) + std::string(16, 'x'),
        EncodeHeader(unordered, 16) + std::string(16, 'x'),
    };
  };
  Connect();
  auto rounds = Add(Plan({4}, 1024));
  std::vector<float> values(4, 7);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  const size_t cases = answers(stream().headers[1]).size();
  for (size_t i = 0; i < cases; ++i) {
    FakeDataStream& current = *transport_.data.back();
    current.Accept();
    current.Receive(answers(current.headers[1])[i]);
    EXPECT_TRUE(current.cancelled) << i;
    EXPECT_FALSE(rounds->IsOver(rounds->AllChunks())) << i;
    EXPECT_THAT(values, Each(7)) << i;
    current.Close(absl::CancelledError(""));
    timers_.Advance(absl::Seconds(1));
    ASSERT_EQ(transport_.data.size(), i + 2);
    transport_.data.back()->Accept();
    ASSERT_EQ(transport_.data.back()->sent.size(), 2u) << i;
    EXPECT_EQ(transport_.data.back()->sent[1], stream().sent[1]);
  }
  transport_.data.back()->Accept();
  transport_.data.back()->Receive(Answer(stream().headers[1], {1}, {1, 2, 3, 4}));
  EXPECT_THAT(values, ElementsAre(1, 2, 3, 4));
}

TEST_F(DataPlaneTest, FailsTheChunkThatIsRefusedAndNothingElse) {
  Connect();
  auto rounds = Add(Plan({16, 16}, 64));
  std::vector<float> a(16), b(16);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(a), Out(a)).ok());
  ASSERT_TRUE(rounds->Push(TensorId{1}, In(b), Out(b)).ok());
  stream().Accept();
  stream().Accept();
  stream().Receive(Refusal(stream().headers[1], absl::InvalidArgumentError("t0 has a NaN")));
  stream().Receive(Answer(stream().headers[2], {1}, std::vector<float>(16, 3)));
  EXPECT_EQ(rounds->Outcome(rounds->ChunksOf(TensorId{0})),
            absl::InvalidArgumentError("t0 has a NaN"));
  EXPECT_TRUE(rounds->Outcome(rounds->ChunksOf(TensorId{1})).ok());
  EXPECT_FALSE(rounds->EndRound().ok());
  EXPECT_FALSE(stream().cancelled);
}

TEST_F(DataPlaneTest, SendsWhatWasRefusedAgainOnceThatHasBeenSaid) {
  Connect();
  auto rounds = Add(Plan({16, 16}, 64));
  std::vector<float> a(16, 5), b(16);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(a), Out(a)).ok());
  ASSERT_TRUE(rounds->Push(TensorId{1}, In(b), Out(b)).ok());
  stream().Accept();
  stream().Accept();
  const absl::Status no_room = absl::ResourceExhaustedError("no room for another slot");
  stream().Receive(Refusal(stream().headers[1], no_room));
  stream().Receive(Answer(stream().headers[2], {1}, std::vector<float>(16, 3)));
  EXPECT_EQ(rounds->Refusal(), no_room);

  // The refusal has not been reported to the caller yet, so nothing is sent.
  ASSERT_TRUE(rounds->SendRefusedAgain(rounds->AllChunks(), absl::InfinitePast()).ok());
  EXPECT_EQ(stream().sent.size(), 3u);
  EXPECT_EQ(rounds->Outcome(rounds->AllChunks()), no_room);

  ASSERT_TRUE(rounds->SendRefusedAgain(rounds->AllChunks(), absl::InfinitePast()).ok());
  ASSERT_EQ(stream().sent.size(), 4u);
  EXPECT_EQ(stream().sent[3], stream().sent[1]);
  EXPECT_TRUE(rounds->Refusal().ok());
  stream().Accept();
  stream().Receive(Answer(stream().headers[3], {1}, std::vector<float>(16, 4)));
  EXPECT_TRUE(rounds->Outcome(rounds->AllChunks()).ok());
  EXPECT_EQ(a, std::vector<float>(16, 4));
  EXPECT_TRUE(rounds->EndRound().ok());
}

TEST_F(DataPlaneTest, ARefusalThatIsToldAgainIsNotThatOfTheNextAttempt) {
  Connect();
  GroupPlan plan = Plan({2}, 1024);
  plan.spec.one_epoch = true;
  auto rounds = Add(std::move(plan));
  std::vector<float> values = {1, 2};
  rounds->PinEpoch(9);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  stream().Accept();
  const std::string refusal = Refusal(stream().headers[1], absl::AbortedError("contribute again"));
  stream().Receive(refusal);
  EXPECT_EQ(rounds->Refusal().code(), absl::StatusCode::kAborted);

  ASSERT_TRUE(rounds->BeginAgain(Round{1}, absl::InfinitePast()).ok());
  rounds->PinEpoch(10);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  stream().Accept();
  stream().Receive(refusal);
  EXPECT_TRUE(rounds->Refusal().ok());
  stream().Receive(Answer(stream().headers[2], {1}, {3, 4}));
  EXPECT_TRUE(rounds->Outcome(rounds->AllChunks()).ok());
  EXPECT_THAT(values, ElementsAre(3, 4));
}

TEST_F(DataPlaneTest, WhatIsStillBeingSentIsNotSentAgain) {
  Connect();
  auto rounds = Add(Plan({16}, 64));
  std::vector<float> a(16);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(a), Out(a)).ok());
  stream().AcceptAndHold();
  stream().Receive(Refusal(stream().headers[1], absl::ResourceExhaustedError("no room")));
  EXPECT_FALSE(rounds->Outcome(rounds->AllChunks()).ok());
  EXPECT_EQ(rounds->SendRefusedAgain(rounds->AllChunks(), absl::InfinitePast()).code(),
            absl::StatusCode::kDeadlineExceeded);
  stream().held.clear();
  EXPECT_TRUE(rounds->SendRefusedAgain(rounds->AllChunks(), absl::InfinitePast()).ok());
  EXPECT_EQ(stream().sent.size(), 3u);
}

TEST_F(DataPlaneTest, SendsAgainWhatItCanBeforeItWaitsForAnotherChunk) {
  Connect();
  auto rounds = Add(Plan({32}, 64));
  std::vector<float> a(32);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(a), Out(a)).ok());
  stream().Accept();
  stream().AcceptAndHold();
  const absl::Status no_room = absl::ResourceExhaustedError("no room");
  stream().Receive(Refusal(stream().headers[1], no_room));
  stream().Receive(Refusal(stream().headers[2], no_room));
  EXPECT_FALSE(rounds->Outcome(rounds->AllChunks()).ok());
  // The message of chunk 1 is still held. That of chunk 0 is not, so chunk 0 is sent again.
  EXPECT_EQ(rounds->SendRefusedAgain(rounds->AllChunks(), absl::InfinitePast()).code(),
            absl::StatusCode::kDeadlineExceeded);
  ASSERT_EQ(stream().sent.size(), 4u);
  EXPECT_EQ(stream().headers[3].chunk, ChunkId{0});
}

TEST_F(DataPlaneTest, SendsAgainWhatIsUnavailableForNow) {
  Connect();
  auto rounds = Add(Plan({4}, 1024));
  std::vector<float> values(4);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  stream().Accept();
  stream().Receive(Refusal(stream().headers[1], absl::UnavailableError("draining")));
  EXPECT_EQ(stream().sent.size(), 2u);
  timers_.Advance(absl::Milliseconds(50));
  ASSERT_EQ(stream().sent.size(), 3u);
  EXPECT_EQ(stream().sent[2], stream().sent[1]);
}

}  // namespace
}  // namespace syncgrads::client
