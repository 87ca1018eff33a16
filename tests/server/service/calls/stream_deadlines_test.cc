#include "server/service/calls/stream_deadlines.h"

#include <cstddef>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(10);

class CountingStream : public TimedStream {
 public:
  void OnTimeout(absl::Duration time) override {
    had = time;
    ++timeouts;
  }
  absl::Duration had;
  int timeouts = 0;
};

class StreamDeadlinesTest : public ::testing::Test {
 protected:
  void Pass(absl::Duration time) {
    clock_.Advance(time);
    deadlines_.Tick();
  }

  FakeClock clock_;
  StreamDeadlines deadlines_{kTimeout, clock_};
  const std::shared_ptr<CountingStream> stream_ = std::make_shared<CountingStream>();
};

TEST_F(StreamDeadlinesTest, CallsAStreamOnceWhenItsTimeIsOver) {
  deadlines_.Add(stream_);
  Pass(kTimeout - absl::Nanoseconds(1));
  EXPECT_EQ(stream_->timeouts, 0);
  Pass(absl::Seconds(1));
  EXPECT_EQ(stream_->timeouts, 1);
  EXPECT_EQ(stream_->had, kTimeout);
  Pass(kTimeout);
  EXPECT_EQ(stream_->timeouts, 1);
}

TEST_F(StreamDeadlinesTest, EachStreamHasItsOwnTime) {
  deadlines_.Add(stream_);
  Pass(absl::Seconds(1));
  const auto later = std::make_shared<CountingStream>();
  deadlines_.Add(later);
  Pass(kTimeout - absl::Seconds(1));
  EXPECT_EQ(stream_->timeouts, 1);
  EXPECT_EQ(later->timeouts, 0);
  Pass(absl::Seconds(1));
  EXPECT_EQ(later->timeouts, 1);
}

TEST_F(StreamDeadlinesTest, AStreamThatIsRemovedOrDestroyedIsNotCalled) {
  deadlines_.Remove(stream_.get(), deadlines_.Add(stream_));
  deadlines_.Add(std::make_shared<CountingStream>());
  Pass(kTimeout);
  EXPECT_EQ(stream_->timeouts, 0);
}

TEST_F(StreamDeadlinesTest, OfTooManyStreamsWithoutHelloTheOldestOnesAreCalledEarly) {
  const auto greeted = std::make_shared<CountingStream>();
  deadlines_.Add(greeted);
  deadlines_.AddWithoutHello(stream_);
  Pass(absl::Seconds(1));
  std::vector<std::shared_ptr<CountingStream>> later;
  for (size_t i = 0; i < StreamDeadlines::kMostWithoutHello; ++i) {
    later.push_back(std::make_shared<CountingStream>());
    deadlines_.AddWithoutHello(later.back());
  }
  Pass(absl::Seconds(2));
  EXPECT_EQ(stream_->timeouts, 1);
  EXPECT_EQ(stream_->had, absl::Seconds(3));
  EXPECT_EQ(greeted->timeouts, 0);
  for (const auto& stream : later) EXPECT_EQ(stream->timeouts, 0);
  Pass(kTimeout);
  EXPECT_EQ(greeted->timeouts, 1);
  for (const auto& stream : later) EXPECT_EQ(stream->timeouts, 1);
}

TEST_F(StreamDeadlinesTest, AStreamWhoseHelloHasComeIsNotCalled) {
  deadlines_.Remove(stream_.get(), deadlines_.AddWithoutHello(stream_));
  Pass(kTimeout);
  EXPECT_EQ(stream_->timeouts, 0);
}

}  // namespace
}  // namespace syncgrads::server
