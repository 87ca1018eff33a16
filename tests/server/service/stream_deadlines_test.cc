#include "server/service/stream_deadlines.h"

#include <memory>

#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(10);

class CountingStream : public TimedStream {
 public:
  void OnTimeout(absl::Duration timeout) override {
    EXPECT_EQ(timeout, kTimeout);
    ++timeouts;
  }
  int timeouts = 0;
};

class StreamDeadlinesTest : public ::testing::Test {
 protected:
  // Returns whether a deadline has passed.
  bool Pass(absl::Duration time) {
    clock_.Advance(time);
    return deadlines_.Tick();
  }

  FakeClock clock_;
  StreamDeadlines deadlines_{kTimeout, clock_};
  const std::shared_ptr<CountingStream> stream_ = std::make_shared<CountingStream>();
};

TEST_F(StreamDeadlinesTest, CallsAStreamOnceWhenItsTimeIsOver) {
  deadlines_.Add(stream_);
  EXPECT_FALSE(Pass(kTimeout - absl::Nanoseconds(1)));
  EXPECT_EQ(stream_->timeouts, 0);
  EXPECT_TRUE(Pass(absl::Nanoseconds(1)));
  EXPECT_EQ(stream_->timeouts, 1);
  EXPECT_FALSE(Pass(kTimeout));
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

}  // namespace
}  // namespace syncgrads::server
