#include "common/polling.h"

#include <poll.h>
#include <sys/socket.h>

#include <thread>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/file_descriptor.h"
#include "gtest/gtest.h"

namespace syncgrads {
namespace {

TEST(PollingTest, TimeoutsArePositiveAndRoundedUp) {
  EXPECT_EQ(PollTimeout(absl::InfiniteFuture()), -1);
  EXPECT_EQ(PollTimeout(absl::InfinitePast()), 0);
  EXPECT_EQ(PollTimeout(MonotonicNow()), 0);
  EXPECT_EQ(PollTimeout(MonotonicNow() + absl::Hours(1000)), 3'600'000);
  const int soon = PollTimeout(MonotonicNow() + absl::Hours(1) - absl::Microseconds(1));
  EXPECT_GT(soon, 0);
  EXPECT_LE(soon, 3'600'000);
}

TEST(PollingTest, AnEventOrTheDeadlineEndsTheWait) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  const FileDescriptor one(pair[0]), other(pair[1]);
  EXPECT_FALSE(AwaitSocket(one.get(), POLLIN, MonotonicNow() + absl::Milliseconds(1)));
  ASSERT_EQ(send(other.get(), "a", 1, 0), 1);
  EXPECT_TRUE(AwaitSocket(one.get(), POLLIN, absl::InfiniteFuture()));
  // It is looked at once more after the deadline.
  EXPECT_TRUE(AwaitSocket(one.get(), POLLIN, absl::InfinitePast()));
}

TEST(PollingTest, AStopEventWakesAThread) {
  StopEvent stop;
  EXPECT_FALSE(stop.is_set());
  std::thread waiting(
      [&stop] { EXPECT_TRUE(AwaitSocket(stop.descriptor(), POLLIN, absl::InfiniteFuture())); });
  stop.Set();
  waiting.join();
  stop.Set();
  EXPECT_TRUE(stop.is_set());
}

}  // namespace
}  // namespace syncgrads
