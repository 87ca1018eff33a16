#include "common/trace/trace.h"

#include <atomic>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/contract/trace.h"
#include "common/trace/clock_offset.h"
#include "common/trace/thread_events.h"
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

std::vector<uint64_t> FirstNumbers(size_t count) {
  std::vector<uint64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

TEST(ThreadEventsTest, EventsStayInOrderAlsoInSeveralPieces) {
  constexpr size_t kEvents = 2 * EventMemory::kPieceEvents + 1;
  const auto memory = std::make_shared<EventMemory>(4);
  ThreadEvents one(memory);
  ThreadEvents other(memory);
  EXPECT_THAT(one.Copy(), IsEmpty());
  for (uint64_t number = 0; number < kEvents; ++number) one.Add(Numbered(number));
  other.Add(Numbered(7));

  EXPECT_EQ(NumbersOf(one.Copy()), FirstNumbers(kEvents));
  EXPECT_THAT(NumbersOf(other.Copy()), ElementsAre(7));
  EXPECT_EQ(one.lost(), 0u);
  EXPECT_EQ(other.lost(), 0u);
}

TEST(ThreadEventsTest, EventsForWhichThereIsNoMemoryAreCounted) {
  const auto memory = std::make_shared<EventMemory>(1);
  ThreadEvents one(memory);
  ThreadEvents other(memory);
  for (uint64_t number = 0; number < EventMemory::kPieceEvents + 3; ++number) {
    one.Add(Numbered(number));
  }
  other.Add(Numbered(0));
  EXPECT_EQ(one.Copy().size(), EventMemory::kPieceEvents);
  EXPECT_EQ(one.Copy().back().args.number, EventMemory::kPieceEvents - 1);
  EXPECT_THAT(other.Copy(), IsEmpty());
  EXPECT_EQ(one.lost(), 3u);
  EXPECT_EQ(other.lost(), 1u);
}

TEST(ThreadEventsTest, AreCopiedWhileTheyAreAdded) {
  constexpr uint64_t kEvents = 20000;
  ThreadEvents events(std::make_shared<EventMemory>(kEvents / EventMemory::kPieceEvents + 1));
  std::atomic<bool> written{false};
  std::thread writer([&] {
    for (uint64_t number = 0; number < kEvents; ++number) events.Add(Numbered(number));
    written = true;
  });
  for (bool last = false; !last;) {
    last = written;
    const std::vector<TraceEvent> copied = events.Copy();
    EXPECT_EQ(NumbersOf(copied), FirstNumbers(copied.size()));
    if (last) {
      EXPECT_EQ(copied.size(), kEvents);
    }
  }
  writer.join();
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
