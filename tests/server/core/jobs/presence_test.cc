#include "server/core/jobs/presence.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads::server {
namespace {

class CountingStream : public MemberStream {
 public:
  void Cut(const absl::Status& reason) override {
    EXPECT_EQ(reason, absl::UnavailableError("dropped"));
    ++cuts;
  }
  void End(const absl::Status& reason) override {
    EXPECT_EQ(reason, absl::UnavailableError("over"));
    ++ends;
  }
  std::atomic<int> cuts{0};
  std::atomic<int> ends{0};
};

TEST(PresenceTest, CutsTheStreamsThatItHasAndLetsNoOtherIn) {
  Presence presence;
  const auto stays = std::make_shared<CountingStream>(), ends = std::make_shared<CountingStream>();
  EXPECT_THAT(presence.AddStream(stays), IsOk());
  EXPECT_THAT(presence.AddStream(ends), IsOk());
  // Destroyed before CutStreams.
  EXPECT_THAT(presence.AddStream(std::make_shared<CountingStream>()), IsOk());
  presence.RemoveStream(ends.get());
  presence.CutStreams(absl::UnavailableError("dropped"));
  presence.CutStreams(absl::UnavailableError("again"));
  EXPECT_EQ(stays->cuts, 1);
  EXPECT_EQ(ends->cuts, 0);
  ExpectError(presence.AddStream(stays), absl::StatusCode::kUnavailable, {"dropped"});
}

TEST(PresenceTest, EndsTheStreamsThatItHasAndLetsNoOtherIn) {
  Presence presence;
  const auto stream = std::make_shared<CountingStream>();
  EXPECT_THAT(presence.AddStream(stream), IsOk());
  presence.EndStreams(absl::UnavailableError("over"));
  EXPECT_EQ(stream->ends, 1);
  EXPECT_EQ(stream->cuts, 0);
  ExpectError(presence.AddStream(stream), absl::StatusCode::kUnavailable, {"over"});
}

TEST(PresenceTest, AMemberHasSoManyStreams) {
  Presence presence;
  std::vector<std::shared_ptr<CountingStream>> streams;
  for (size_t i = 0; i < Presence::kMaxStreams; ++i) {
    streams.push_back(std::make_shared<CountingStream>());
    EXPECT_THAT(presence.AddStream(streams.back()), IsOk());
  }
  const auto late = std::make_shared<CountingStream>();
  ExpectError(presence.AddStream(late), absl::StatusCode::kResourceExhausted,
              {absl::StrCat("the limit is ", Presence::kMaxStreams)});
  presence.RemoveStream(streams.front().get());
  EXPECT_THAT(presence.AddStream(late), IsOk());
}

TEST(PresenceTest, StreamsThatComeWhileItCutsAreCutOrRefused) {
  Presence presence;
  std::vector<std::shared_ptr<CountingStream>> streams;
  for (int i = 0; i < 50; ++i) streams.push_back(std::make_shared<CountingStream>());
  std::vector<bool> added(streams.size());
  std::thread adder([&] {
    for (size_t i = 0; i < streams.size(); ++i) added[i] = presence.AddStream(streams[i]).ok();
  });
  presence.CutStreams(absl::UnavailableError("dropped"));
  adder.join();
  for (size_t i = 0; i < streams.size(); ++i) EXPECT_EQ(streams[i]->cuts, added[i] ? 1 : 0) << i;
}

}  // namespace
}  // namespace syncgrads::server
