// Which connections the data plane opens, which chunks it sends on which connection, and when it
// gives up.

#include <cstddef>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/session/data_plane_fixture.h"

namespace syncgrads::client {
namespace {

using ::testing::HasSubstr;

TEST_F(DataPlaneTest, OnASlowLinkGoesFromServerToServer) {
  Connect(/*servers=*/2);
  auto rounds = Add(Plan({64 << 10}, 32 << 10, Reduction::kAverage, /*servers=*/2));
  std::vector<float> values(64 << 10);
  ASSERT_TRUE(rounds->Push(TensorId{0}, In(values), Out(values)).ok());
  const auto pass = [this](size_t server) {
    timers_.Advance(absl::Milliseconds(5));
    stream(server).Accept();
  };
  // Until the speed of the link has been measured, both streams are used at once.
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
  // A chunk that was sent on the broken stream is sent again on the other stream.
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
  // Chunks that the closing streams have not finished are sent again on the remaining stream.
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
  plane_->SetConnections(2);  // the old stream 1 is still closing
  EXPECT_EQ(transport_.data.size(), 2u);
  stream(1).Close(absl::CancelledError(""));
  timers_.Advance(absl::Milliseconds(50));
  ASSERT_EQ(transport_.data.size(), 3u);
  stream(2).Accept();
  stream(0).held.clear();
  stream(0).Close(absl::UnavailableError("cut"));
  // The chunk is sent again at once, without any event on the other stream.
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

// A newcomer may wait longer than a lease before it is admitted.
TEST_F(DataPlaneTest, AServerIsNotOutOfReachBeforeItIsReachedFor) {
  Make();
  timers_.Advance(absl::Seconds(40));
  plane_->Start();
  stream().Close(absl::UnavailableError("the server restarts"));
  EXPECT_TRUE(lost_.ok()) << lost_;
  timers_.Advance(absl::Seconds(2));
  EXPECT_EQ(transport_.data.size(), 2u);
}

}  // namespace
}  // namespace syncgrads::client
