// The data plane over a transport that the test drives: what goes out, in which
// order and how often, and what becomes of answers.

#include "client/data_plane.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "client/wait.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_transport.h"

namespace syncgrads::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A group of f32 tensors with these lengths, all on server 0 unless told.
GroupPlan Plan(const std::vector<int64_t>& lengths, uint32_t chunk_bytes,
               UpdateRule rule = Reduction::kAverage, uint32_t servers = 1) {
  GroupSpec spec;
  spec.name = "model";
  for (size_t t = 0; t < lengths.size(); ++t) {
    spec.tensors.push_back({absl::StrCat("t", t), DType::kF32, {lengths[t]}});
  }
  spec.rule = rule;
  spec.chunk_bytes = chunk_bytes;
  Layout layout = *Layout::Create(spec.tensors, chunk_bytes, spec.compression);
  std::vector<uint64_t> bytes(servers);
  std::vector<ServerIndex> placement = PlaceChunks(layout, bytes);
  return {GroupId{3}, std::move(spec), std::move(layout), std::move(placement)};
}

absl::Span<const std::byte> In(const std::vector<float>& values) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                             values.size() * sizeof(float));
}
absl::Span<std::byte> Out(std::vector<float>& values) {
  return absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(float));
}

// The answer to a push, with a result of these values.
std::string Answer(const PushHeader& push, std::vector<uint32_t> counts,
                   const std::vector<float>& result) {
  UpdateHeader header;
  header.generation = push.generation;
  header.group = push.group;
  header.chunk = push.chunk;
  header.round = push.round;
  header.counts = std::move(counts);
  const std::string bytes(reinterpret_cast<const char*>(result.data()),
                          result.size() * sizeof(float));
  return EncodeHeader(header, bytes.size()) + bytes;
}

std::string Refusal(const PushHeader& push, absl::Status error) {
  UpdateHeader header;
  header.generation = push.generation;
  header.group = push.group;
  header.chunk = push.chunk;
  header.round = push.round;
  header.epoch = push.epoch;
  header.error = std::move(error);
  return EncodeHeader(header, 0);
}

class DataPlaneTest : public ::testing::Test {
 protected:
  void Start(uint32_t servers = 1, int connections = 1) {
    Make(servers, connections);
    plane_->Start();
  }
  void Make(uint32_t servers = 1, int connections = 1) {
    DataPlane::Options options;
    for (uint32_t s = 0; s < servers; ++s) options.servers.push_back(absl::StrCat("server", s));
    options.connections_per_server = connections;
    options.hello.protocol_version = 1;
    options.hello.job = "job";
    options.hello.member = MemberId{5};
    options.hello.incarnation = Incarnation{77};
    options.generation = Generation{2};
    options.lease = absl::Seconds(30);
    options.on_lost = [this](absl::Status status) { lost_ = status; };
    plane_ = std::make_unique<DataPlane>(std::move(options), transport_, timers_);
    plane_->SetEpoch(9);
  }
  void Connect(uint32_t servers = 1, int connections = 1) {
    Start(servers, connections);
    for (const auto& stream : transport_.data) stream->Accept();
  }
  std::shared_ptr<GroupRounds> Add(GroupPlan plan) { return *plane_->AddGroup(std::move(plan)); }
  FakeDataStream& stream(size_t i = 0) { return *transport_.data[i]; }

  void TearDown() override {
    if (plane_ == nullptr) return;
    plane_->Fail(absl::CancelledError("over"));
    plane_->Close();
    for (const auto& stream : transport_.data) {
      stream->held.clear();
      if (!stream->closed && stream->started) stream->Close(absl::CancelledError(""));
    }
    plane_->AwaitClosed();
  }

  FakeTransport transport_;
  FakeTimers timers_;
  std::unique_ptr<DataPlane> plane_;
  absl::Status lost_;
};

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

TEST_F(DataPlaneTest, OnASlowLinkGoesFromServerToServer) {
  Connect(/*servers=*/2);
  auto rounds = Add(Plan({64 << 10}, 32 << 10, Reduction::kAverage, /*servers=*/2));
  std::vector<float> values(64 << 10);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  const auto pass = [this](size_t server) {
    timers_.Advance(absl::Milliseconds(5));
    stream(server).Accept();
  };
  // Until it is known how slow the link is, both streams are busy.
  EXPECT_EQ(stream(0).held.size() + stream(1).held.size(), 2u);
  pass(0);
  pass(1);
  for (size_t turn = 0; turn < 4; ++turn) {
    const size_t now = turn % 2;
    EXPECT_EQ(stream(now).held.size(), 1u) << "turn " << turn;
    EXPECT_EQ(stream(1 - now).held.size(), 0u) << "turn " << turn;
    pass(now);
  }
}

TEST_F(DataPlaneTest, AStreamThatBreaksGivesItsTurnToTheOthers) {
  Connect(/*servers=*/2);
  auto rounds = Add(Plan({64 << 10}, 32 << 10, Reduction::kAverage, /*servers=*/2));
  std::vector<float> values(64 << 10);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  for (size_t server : {0, 1}) {
    timers_.Advance(absl::Milliseconds(5));
    stream(server).Accept();
  }
  ASSERT_EQ(stream(1).held.size(), 0u);
  stream(0).held.clear();
  stream(0).Close(absl::UnavailableError("gone"));
  EXPECT_EQ(stream(1).held.size(), 1u);
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
  // The payload leaves the absent span out.
  const float expected[] = {1, 2, 4, 5, 6};
  EXPECT_EQ(stream().sent[1].substr(stream().sent[1].size() - 20),
            std::string(reinterpret_cast<const char*>(expected), 20));
  stream().Accept();
  stream().Receive(Answer(stream().headers[1], {2, 0, 1}, {10, 20, -1, 40, 50, 60}));
  EXPECT_TRUE(rounds->Outcome(rounds->AllChunks()).ok());
  EXPECT_THAT(a, ElementsAre(10, 20));
  EXPECT_THAT(b, ElementsAre(3));  // nobody contributed
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
  auto rounds = Add(Plan({64}, 64));  // four chunks of 16
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
  auto rounds = Add(Plan({16, 16, 16, 16}, 64));  // a chunk for each tensor
  std::vector<float> values(16);
  // As the backward pass makes them.
  for (uint32_t t : {3, 2, 1, 0}) {
    ASSERT_TRUE(rounds->Push(TensorId{t}, In(values), Out(values)).ok());
  }
  for (int i = 0; i < 4; ++i) stream().Accept();
  std::vector<uint32_t> order;
  for (size_t i = 1; i < stream().headers.size(); ++i) {
    order.push_back(ToNumber(stream().headers[i].chunk));
  }
  EXPECT_THAT(order, ElementsAre(3, 0, 1, 2));  // 3 was alone when it went out
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
  // The newest epoch is another by now: the message is not made anew.
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
  stream().AcceptAndHold();  // and the old connection still holds it when
  FakeDataStream& old = stream();
  old.Close(absl::UnavailableError("cut"));
  timers_.Advance(absl::Milliseconds(50));
  stream(1).Accept();
  stream(1).Accept();
  // the answer comes by the new one.
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
    return std::vector<std::string>{
        std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12),
        Answer(push, {1, 1}, {1, 2, 3, 4}),  // one span, two counts
        Answer(push, {1}, {1, 2, 3}),        // too short
        Answer(push, {1}, {1, 2, 3, 4, 5}),
        Answer(push, {1}, {}),
        Answer(other, {1}, {1, 2, 3, 4}),
        EncodeHeader(codec, 16) + std::string(16, 'x'),
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

  // Nobody has heard of it yet.
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
  const std::string refusal = Refusal(stream().headers[1], absl::AbortedError("make it again"));
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

TEST_F(DataPlaneTest, SpreadsChunksOverConnections) {
  Connect(1, 2);
  auto rounds = Add(Plan({64}, 64));
  std::vector<float> values(64);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  EXPECT_EQ(stream(0).headers.size(), 2u);
  EXPECT_EQ(stream(1).headers.size(), 2u);
  stream(1).Accept();
  EXPECT_EQ(stream(0).headers.size(), 2u);
  EXPECT_EQ(stream(1).headers.size(), 3u);
  // What went out on the one that breaks goes out on the other.
  stream(0).held.clear();
  stream(0).Close(absl::UnavailableError("cut"));
  stream(1).Accept();
  EXPECT_EQ(stream(1).headers.back().chunk, ChunkId{0});
}

TEST_F(DataPlaneTest, OpensAndClosesConnectionsAsItIsTold) {
  Connect(1, 2);
  plane_->SetConnections(3);
  ASSERT_EQ(transport_.data.size(), 3u);
  stream(2).Accept();
  auto rounds = Add(Plan({64}, 64));
  std::vector<float> values(64);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  EXPECT_EQ(stream(2).headers.size(), 2u);

  plane_->SetConnections(1);
  EXPECT_FALSE(stream(0).cancelled);
  EXPECT_TRUE(stream(1).cancelled);
  EXPECT_TRUE(stream(2).cancelled);
  // What is accepted by then on those that close, goes out again on the one that stays.
  for (const size_t closing : {1, 2}) {
    stream(closing).held.clear();
    stream(closing).Close(absl::CancelledError(""));
  }
  for (int i = 0; i < 4; ++i) stream(0).Accept();
  EXPECT_EQ(stream(0).headers.size(), 5u);
  timers_.Advance(absl::Seconds(10));
  EXPECT_EQ(transport_.data.size(), 3u);
  EXPECT_TRUE(lost_.ok());

  plane_->SetConnections(2);
  EXPECT_EQ(transport_.data.size(), 4u);
}

TEST_F(DataPlaneTest, SendsOnAnotherConnectionAtOnceWhatOneThatClosesLeavesBehind) {
  Connect(1, 2);
  auto rounds = Add(Plan({16}, 64));
  std::vector<float> values(16);
  plane_->SetConnections(1);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  EXPECT_EQ(stream(0).headers.size(), 2u);
  stream(0).Accept();
  plane_->SetConnections(2);  // the second has not been closed yet
  EXPECT_EQ(transport_.data.size(), 2u);
  stream(1).Close(absl::CancelledError(""));
  timers_.Advance(absl::Milliseconds(50));
  ASSERT_EQ(transport_.data.size(), 3u);
  stream(2).Accept();
  stream(0).held.clear();
  stream(0).Close(absl::UnavailableError("cut"));
  // Nothing has to happen on the other first.
  EXPECT_EQ(stream(2).headers.size(), 2u);
}

TEST_F(DataPlaneTest, BacksOffFrom50MillisecondsTo1SecondUntilTheLeaseHasEnded) {
  Start();
  const int expected[] = {50, 100, 200, 400, 800, 1000, 1000};
  for (int milliseconds : expected) {
    const size_t before = transport_.data.size();
    transport_.data.back()->Close(absl::UnavailableError("connection refused"));
    timers_.Advance(absl::Milliseconds(milliseconds - 1));
    EXPECT_EQ(transport_.data.size(), before);
    timers_.Advance(absl::Milliseconds(1));
    EXPECT_EQ(transport_.data.size(), before + 1);
  }
  EXPECT_TRUE(lost_.ok());
  for (int i = 0; i < 40 && lost_.ok(); ++i) {
    transport_.data.back()->Close(absl::UnavailableError("connection refused"));
    timers_.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(lost_.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(lost_.message()), HasSubstr("server 0 at server0"));
  EXPECT_THAT(std::string(lost_.message()), HasSubstr("connection refused"));
}

TEST_F(DataPlaneTest, GivesUpAtOnceWhenTheServerRefusesTheHello) {
  Start();
  stream().Close(absl::PermissionDeniedError("another token"));
  EXPECT_EQ(lost_.code(), absl::StatusCode::kPermissionDenied);
  timers_.Advance(absl::Minutes(1));
  EXPECT_EQ(transport_.data.size(), 1u);
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
  EXPECT_FALSE(rounds->AwaitReleased(absl::Now()));
  stream().held.clear();
  EXPECT_TRUE(rounds->AwaitReleased(absl::Now()));
  EXPECT_FALSE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  EXPECT_EQ(values, std::vector<float>(2000, 1));
}

TEST_F(DataPlaneTest, PutsTheServersWordsIntoTheDeadlinesError) {
  Connect(2);
  auto rounds = Add(Plan({32}, 64, Reduction::kAverage, 2));
  std::vector<float> values(32);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  transport_.explanation = std::vector<RoundWait>{{GroupId{3}, Round{1}, "it waits for w1"},
                                                  {GroupId{3}, Round{2}, "of another round"}};
  const absl::Status status =
      AwaitAnswers(*rounds, rounds->AllChunks(), absl::Milliseconds(60), *plane_);
  EXPECT_GE(absl::Now() - timers_.Now(), absl::Milliseconds(60));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("step 1 of group \"model\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 of 2 chunks"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("it waits for w1; it waits for w1"));
  EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("another round")));
  // And where there is no way to the server, that.
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

  // More than there is room for is an error of the operation.
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(mine), Out(all)).ok());
  stream().Accept();
  stream().Accept();
  stream().Receive(answer(5, {0, 1, 2}, {1, 2, 3}));
  EXPECT_EQ(rounds->Outcome(rounds->AllChunks()).code(), absl::StatusCode::kInvalidArgument);
}

// A newcomer may wait for longer than a lease until it is let in.
TEST_F(DataPlaneTest, AServerIsNotOutOfReachBeforeItIsReachedFor) {
  Make();
  timers_.Advance(absl::Seconds(40));
  plane_->Start();
  stream().Close(absl::UnavailableError("the server restarts"));
  EXPECT_TRUE(lost_.ok()) << lost_;
  timers_.Advance(absl::Seconds(2));
  EXPECT_EQ(transport_.data.size(), 2u);
}

TEST_F(DataPlaneTest, RefusesAPlanThatNamesAServerThatThereIsNot) {
  Start();
  GroupPlan plan = Plan({4}, 1024);
  plan.servers[0] = ServerIndex{1};
  EXPECT_EQ(plane_->AddGroup(std::move(plan)).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace syncgrads::client
