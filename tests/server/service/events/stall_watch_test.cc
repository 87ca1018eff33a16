#include "server/service/events/stall_watch.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

// A clock on which one call of Now blocks. A chunk calls Now under its mutex when a round begins,
// so the mutex is held in the meantime, as it is during a long reduction.
class WaitingClock : public FakeClock {
 public:
  absl::Time Now() const override {
    if (next_waits_.exchange(false)) {
      waits_.set_value();
      go_on_.get_future().wait();
    }
    return FakeClock::Now();
  }
  void LetNextWait() { next_waits_ = true; }
  void AwaitWaiting() { waits_.get_future().wait(); }
  void GoOn() { go_on_.set_value(); }

 private:
  mutable std::atomic<bool> next_waits_ = false;
  mutable std::promise<void> waits_, go_on_;
};

class StallWatchTest : public testing::Test {
 protected:
  StallWatchTest()
      : jobs_(ServerIndex{0}, clock_), watch_(absl::Seconds(10), jobs_, clock_, journal_) {
    jobs_.Apply({1, "iris", Generation{1}, JobOpened{}});
    jobs_.Apply({2, "iris", Generation{1}, EpochOfSize(2)});
    jobs_.Apply({3, "iris", Generation{1},
                 std::make_shared<const GroupPlan>(OneTensor(DType::kF32, 1, Reduction::kSum))});
  }

  void Push(uint32_t member, uint64_t round) {
    jobs_.Find("iris")->Push(PushOf(member, round), PayloadOf(std::string(4, '\0')),
                             std::make_shared<RecordingSink>());
  }
  std::vector<std::string> LinesAfter(absl::Duration time) {
    const size_t before = journal_.lines().size();
    clock_.Advance(time);
    watch_.Tick();
    std::vector<std::string> lines = journal_.lines();
    lines.erase(lines.begin(), lines.begin() + static_cast<ptrdiff_t>(before));
    return lines;
  }

  WaitingClock clock_;
  LineJournal journal_;
  Jobs jobs_;
  StallWatch watch_;
};

TEST_F(StallWatchTest, NamesWhomWhatAndHowLongAfterTheWarningTime) {
  Push(0, 1);
  EXPECT_THAT(LinesAfter(absl::Seconds(9.9)), IsEmpty());
  const std::vector<std::string> lines = LinesAfter(absl::Seconds(0.2));
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_THAT(lines[0], StartsWith("warning"));
  for (const char* part : {"job \"iris\"", "step 1", "\"model\"", "10.1s", "\"w1\"", "\"w\""}) {
    EXPECT_THAT(lines[0], HasSubstr(part));
  }
  EXPECT_THAT(lines[0], testing::Not(HasSubstr("\"w0\"")));
}

TEST_F(StallWatchTest, WarnsAgainEachTimeThatAsMuchHasPassed) {
  Push(0, 1);
  EXPECT_THAT(LinesAfter(absl::Seconds(10)), SizeIs(1));
  EXPECT_THAT(LinesAfter(absl::Seconds(1)), IsEmpty());
  EXPECT_THAT(LinesAfter(absl::Seconds(8)), IsEmpty());
  const std::vector<std::string> lines = LinesAfter(absl::Seconds(1));
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_THAT(lines[0], HasSubstr("20.0s"));
}

TEST_F(StallWatchTest, NotesWhenARoundGoesOn) {
  Push(0, 1);
  LinesAfter(absl::Seconds(12));
  clock_.Advance(absl::Seconds(3));
  Push(1, 1);
  const std::vector<std::string> lines = LinesAfter(absl::ZeroDuration());
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_THAT(lines[0], StartsWith("note"));
  EXPECT_THAT(lines[0], HasSubstr("step 1 of group \"model\" continues after 15.0s"));
  EXPECT_THAT(LinesAfter(absl::Seconds(60)), IsEmpty());
}

TEST_F(StallWatchTest, SaysNothingOfARoundThatNobodyWaitsFor) {
  Push(0, 1);
  Push(1, 1);
  EXPECT_THAT(LinesAfter(absl::Seconds(60)), IsEmpty());
}

TEST_F(StallWatchTest, WarnsOfTheNextRoundAnew) {
  Push(0, 1);
  LinesAfter(absl::Seconds(10));
  Push(1, 1);
  Push(0, 2);
  EXPECT_THAT(LinesAfter(absl::Seconds(9)), SizeIs(1));  // the warning that round 1 goes on
  const std::vector<std::string> lines = LinesAfter(absl::Seconds(1));
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_THAT(lines[0], HasSubstr("step 2"));
}

// A chunk's mutex is held while its round is reduced, and a group has many chunks. The watch takes
// the lock only of chunks with a waiting push.
TEST_F(StallWatchTest, DoesNotWaitForTheLocksOfChunksThatShowNoWait) {
  clock_.LetNextWait();
  std::thread push([this] { Push(0, 1); });
  clock_.AwaitWaiting();
  std::promise<void> done;
  std::thread look([this, &done] {
    watch_.Tick();
    jobs_.Find("iris")->Explain(std::nullopt);
    done.set_value();
  });
  EXPECT_EQ(done.get_future().wait_for(std::chrono::minutes(1)), std::future_status::ready);
  clock_.GoOn();
  push.join();
  look.join();
  EXPECT_THAT(LinesAfter(absl::Seconds(10)), SizeIs(1)) << "and sees it once it waits";
}

TEST_F(StallWatchTest, SeesAWaitThatBeginsAfterAnyNumberOfIdleLooks) {
  for (int look = 0; look < 5; ++look) EXPECT_THAT(LinesAfter(absl::Seconds(60)), IsEmpty());
  Push(0, 1);
  Push(1, 1);
  for (int look = 0; look < 5; ++look) EXPECT_THAT(LinesAfter(absl::Seconds(60)), IsEmpty());
  Push(0, 2);
  EXPECT_THAT(LinesAfter(absl::Seconds(9)), IsEmpty());
  EXPECT_THAT(LinesAfter(absl::Seconds(1)), SizeIs(1));
}

}  // namespace
}  // namespace syncgrads::server
