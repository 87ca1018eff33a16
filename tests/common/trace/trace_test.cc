#include "common/trace/trace.h"

#include <atomic>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/contract/trace.h"
#include "common/trace/clock_offset.h"
#include "common/trace/trace_ring.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/wait_until.h"

namespace syncgrads {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TraceEvent Numbered(uint64_t number) { return {"event", 0, 0, TraceArgs::Step(number)}; }

std::vector<uint64_t> NumbersOf(const std::vector<TraceEvent>& events) {
  std::vector<uint64_t> numbers;
  for (const TraceEvent& event : events) numbers.push_back(event.args.number);
  return numbers;
}

TEST(TraceRingTest, EventsComeOutInOrderAlsoAroundItsEnd) {
  TraceRing ring(3);
  std::vector<TraceEvent> events;
  for (uint64_t number = 0; number < 8; number += 2) {
    ring.Add(Numbered(number));
    ring.Add(Numbered(number + 1));
    EXPECT_EQ(ring.Drain(events, 100), 2u);
  }
  EXPECT_THAT(NumbersOf(events), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(ring.lost(), 0u);
}

TEST(TraceRingTest, EventsForWhichThereIsNoRoomAreCounted) {
  TraceRing ring(2);
  for (uint64_t number = 0; number < 5; ++number) ring.Add(Numbered(number));
  EXPECT_EQ(ring.lost(), 3u);
  std::vector<TraceEvent> events;
  EXPECT_EQ(ring.Drain(events, 1), 1u);
  EXPECT_EQ(ring.lost(), 4u);
  ring.Add(Numbered(9));
  EXPECT_EQ(ring.Drain(events, 1), 1u);
  EXPECT_THAT(NumbersOf(events), ElementsAre(0, 9));
  TraceRing none(0);
  none.Add(Numbered(1));
  EXPECT_EQ(none.Drain(events, 1), 0u);
  EXPECT_EQ(none.lost(), 1u);
}

TEST(TraceRingTest, IsDrainedWhileItIsWritten) {
  constexpr uint64_t kEvents = 20000;
  TraceRing ring(16);
  std::atomic<bool> written{false};
  std::thread writer([&] {
    for (uint64_t number = 1; number <= kEvents; ++number) ring.Add(Numbered(number));
    written = true;
  });
  std::vector<TraceEvent> events;
  for (bool last = false; !last;) {
    last = written;
    ring.Drain(events, kEvents);
  }
  writer.join();
  EXPECT_EQ(events.size() + ring.lost(), kEvents);
  uint64_t before = 0;
  for (const TraceEvent& event : events) {
    ASSERT_GT(event.args.number, before);
    before = event.args.number;
  }
}

// Records until it is stopped.
class Recorded {
 public:
  Recorded() : thread_([this] { records_ = RecordTrace(absl::InfiniteDuration(), stop_); }) {
    EXPECT_TRUE(testing::WaitUntil([] { return IsTracing(); }));
  }
  ~Recorded() {
    if (thread_.joinable()) Stop().IgnoreError();
  }
  absl::StatusOr<TraceRecords> Stop() {
    stop_ = true;
    thread_.join();
    return records_;
  }

 private:
  std::atomic<bool> stop_{false};
  absl::StatusOr<TraceRecords> records_ = absl::UnknownError("not stopped");
  std::thread thread_;
};

TEST(TraceTest, WithoutARecordingNothingIsKept) {
  { const TraceSpan span("before"); }
  RecordTraceWait("before", absl::Now(), absl::Now(), {});
  Recorded recorded;
  const absl::StatusOr<TraceRecords> records = recorded.Stop();
  ASSERT_TRUE(records.ok());
  EXPECT_THAT(records->threads, IsEmpty());
  EXPECT_FALSE(IsTracing());
}

TEST(TraceTest, EachThreadHasItsEventsUnderItsName) {
  Recorded recorded;
  std::thread other([] {
    SetTraceRole("closer");
    const TraceSpan span(InternTraceName(absl::StrCat("forward ", "dense1")), TraceArgs::Step(7));
  });
  other.join();
  {
    const TraceSpan outer("outer");
    const TraceSpan inner("inner");
  }
  const absl::StatusOr<TraceRecords> records = recorded.Stop();
  ASSERT_TRUE(records.ok());
  ASSERT_EQ(records->threads.size(), 2u);
  const TracedThread& closer = records->threads[0];
  EXPECT_EQ(closer.name, "closer");
  ASSERT_EQ(closer.events.size(), 1u);
  EXPECT_STREQ(closer.events[0].name, "forward dense1");
  EXPECT_EQ(closer.events[0].args, TraceArgs::Step(7));
  const TracedThread& own = records->threads[1];
  EXPECT_NE(own.id, closer.id);
  ASSERT_EQ(own.events.size(), 2u);
  const TraceEvent& inner = own.events[0];
  const TraceEvent& outer = own.events[1];
  EXPECT_STREQ(inner.name, "inner");
  EXPECT_LE(outer.begin, inner.begin);
  EXPECT_LE(inner.begin, inner.end);
  EXPECT_LE(inner.end, outer.end);
  EXPECT_EQ(records->lost, 0u);
}

TEST(TraceTest, ASecondRecordingIsRefusedAndALaterOneIsNot) {
  for (int time = 0; time < 2; ++time) {
    Recorded recorded;
    const std::atomic<bool> stop{true};
    EXPECT_TRUE(absl::IsAlreadyExists(RecordTrace(absl::InfiniteDuration(), stop).status()));
    { const TraceSpan span("span"); }
    const absl::StatusOr<TraceRecords> records = recorded.Stop();
    ASSERT_TRUE(records.ok());
    ASSERT_EQ(records->threads.size(), 1u);
    EXPECT_EQ(records->threads[0].events.size(), 1u);
  }
}

TEST(TraceTest, EventsOfTooManyThreadsAreLostAndCounted) {
  Recorded recorded;
  for (size_t thread = 0; thread < kMaxTracedThreads + 3; ++thread) {
    std::thread([] { const TraceSpan span("span"); }).join();
  }
  const absl::StatusOr<TraceRecords> records = recorded.Stop();
  ASSERT_TRUE(records.ok());
  EXPECT_EQ(records->threads.size(), kMaxTracedThreads);
  EXPECT_EQ(records->lost, 3u);
}

TEST(TraceTest, EqualNamesAreKeptOnceAndTooManyBecomeOther) {
  EXPECT_EQ(InternTraceName("push"), InternTraceName(std::string("push")));
  std::set<std::string> names;
  for (size_t i = 0; i <= kMaxTraceNames; ++i) names.insert(InternTraceName(absl::StrCat(i)));
  EXPECT_LE(names.size(), kMaxTraceNames + 1);
  EXPECT_TRUE(names.contains("other"));
}

TEST(TraceTest, PartsAreCompleteInThemselvesAndLeaveOtherJobsOut) {
  TraceRecords records;
  records.lost = 5;
  records.threads.resize(2);
  records.threads[0] = {11, "closer", {}};
  records.threads[1] = {12, "trainer", {}};
  const auto of_job = [](uint32_t job) {
    return TraceArgs::Of(Round{3}, job, GroupId{1}, ChunkId{2}, MemberId{0});
  };
  records.threads[0].events = {{"reduce", 10, 20, of_job(TraceJob("mine"))},
                               {"reduce", 30, 40, of_job(TraceJob("other"))}};
  records.threads[1].events.assign(kTracePartEvents, {"write", 50, 60, TraceArgs::Bytes(8), true});
  const std::vector<v1::TracePart> parts = ToProto(records, TraceJob("mine"));
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].events_size(), static_cast<int>(kTracePartEvents));
  EXPECT_EQ(parts[0].lost(), 5u);
  EXPECT_EQ(parts[0].names(0), "reduce");
  EXPECT_EQ(parts[0].events(0).round().round(), 3u);
  EXPECT_TRUE(parts[0].events(0).round().has_member());
  ASSERT_EQ(parts[1].events_size(), 1);
  EXPECT_EQ(parts[1].lost(), 0u);
  EXPECT_EQ(parts[1].names(0), "write");
  EXPECT_EQ(parts[1].threads(0).id(), 12u);
  EXPECT_EQ(parts[1].events(0).duration_ns(), 10u);
  EXPECT_TRUE(parts[1].events(0).overlaps());
}

TEST(ClockOffsetTest, TheShortestRoundTripCounts) {
  ClockOffset clock;
  clock.Add(/*sent=*/1000, /*other=*/5100, /*received=*/1400);
  EXPECT_EQ(clock.offset(), 3900);
  clock.Add(2000, 6010, 2020);
  EXPECT_EQ(clock.offset(), 4000);
  EXPECT_EQ(clock.error(), 11u);
  clock.Add(3000, 9000, 3030);
  EXPECT_EQ(clock.offset(), 4000);
}

}  // namespace
}  // namespace syncgrads
