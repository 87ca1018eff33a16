#include "server/service/event_log.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr size_t kAll = 1000;

Event EventOf(const std::string& job, const std::string& text) {
  return {.kind = EventKind::kJoined, .job = job, .text = text};
}

std::vector<std::string> TextsOf(const EventLog::Part& part) {
  std::vector<std::string> texts;
  for (const auto& kept : part.events) texts.push_back(kept->event.text);
  return texts;
}

class EventLogTest : public ::testing::Test {
 protected:
  EventLog Log(size_t max_events, size_t max_bytes = 1 << 20) {
    return EventLog(journal_, {.max_events = max_events, .max_bytes = max_bytes, .now = [this] {
                                 return now_ += absl::Seconds(1);
                               }});
  }

  LineJournal journal_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

TEST_F(EventLogTest, EventsAreNumberedDatedAndPassedToTheJournal) {
  EventLog log = Log(10);
  log.Record(EventOf("iris", "one"));
  log.Note("a note");
  log.Record({.kind = EventKind::kDropped, .text = "two", .level = LogLevel::kWarning});
  const EventLog::Part part = log.Read(1, "", kAll);
  EXPECT_THAT(TextsOf(part), ElementsAre("one", "two"));
  EXPECT_EQ(part.events[0]->number, 1u);
  EXPECT_EQ(part.events[0]->date, absl::FromUnixSeconds(1001));
  EXPECT_EQ(part.events[1]->number, 2u);
  EXPECT_EQ(part.missed, 0u);
  EXPECT_EQ(part.next, 3u);
  EXPECT_THAT(journal_.lines(), ElementsAre("note: one", "note: a note", "warning: two"));
}

TEST_F(EventLogTest, TheOldestEventsAreDiscardedAndCounted) {
  EventLog log = Log(2);
  for (int i = 1; i <= 5; ++i) log.Record(EventOf("iris", absl::StrCat(i)));
  const EventLog::Part all = log.Read(1, "", kAll);
  EXPECT_THAT(TextsOf(all), ElementsAre("4", "5"));
  EXPECT_EQ(all.missed, 3u);
  EXPECT_EQ(all.last_missed, 3u);
  EXPECT_EQ(all.last_missed_date, absl::FromUnixSeconds(1003));
  EXPECT_EQ(log.Read(3, "", kAll).missed, 1u);
  EXPECT_EQ(log.Read(4, "", kAll).missed, 0u);
}

TEST_F(EventLogTest, BytesAreLimitedAndTheNewestEventIsAlwaysKept) {
  EventLog log = Log(10, /*max_bytes=*/2000);
  for (int i = 1; i <= 9; ++i) log.Record(EventOf("iris", std::string(500, 'a')));
  EXPECT_LT(log.Read(1, "", kAll).events.size(), 4u);
  log.Record(EventOf("iris", std::string(5000, 'b')));
  EXPECT_THAT(TextsOf(log.Read(1, "", kAll)), ElementsAre(std::string(5000, 'b')));
}

TEST_F(EventLogTest, ALongTextIsTruncatedAndControlCharactersAreEscaped) {
  EventLog log(journal_, {.max_text_bytes = 4});
  log.Record(EventOf("iris", "a\nbcdefgh"));
  const std::string text = log.Read(1, "", kAll).events[0]->event.text;
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_EQ(text.find("efgh"), std::string::npos) << text;
}

TEST_F(EventLogTest, ADetailFollowsTheTextInTheJournalAndIsKeptApart) {
  EventLog log = Log(10);
  log.Record({.kind = EventKind::kCheckpoint, .text = "written", .detail = " to /c\n"});
  const EventLog::Part part = log.Read(1, "", kAll);
  EXPECT_THAT(TextsOf(part), ElementsAre("written"));
  EXPECT_EQ(part.events[0]->event.detail, " to /c\\x0a");
  EXPECT_THAT(journal_.lines(), ElementsAre("note: written to /c\n"));
}

TEST_F(EventLogTest, PartsFollowEachOther) {
  EventLog log = Log(10);
  for (int i = 1; i <= 5; ++i) log.Record(EventOf("iris", absl::StrCat(i)));
  const EventLog::Part first = log.Read(1, "", 2);
  EXPECT_THAT(TextsOf(first), ElementsAre("1", "2"));
  EXPECT_THAT(TextsOf(log.Read(first.next, "", kAll)), ElementsAre("3", "4", "5"));
  EXPECT_THAT(log.Read(6, "", kAll).events, IsEmpty());
}

TEST_F(EventLogTest, OnlyTheEventsOfOneJobCanBeRead) {
  EventLog log = Log(10);
  for (int i = 1; i <= 6; ++i) log.Record(EventOf(i % 2 == 0 ? "even" : "odd", absl::StrCat(i)));
  const EventLog::Part even = log.Read(1, "even", 2);
  EXPECT_THAT(TextsOf(even), ElementsAre("2", "4"));
  EXPECT_THAT(TextsOf(log.Read(even.next, "even", 2)), ElementsAre("6"));
  const EventLog::Part none = log.Read(1, "other", 2);
  EXPECT_THAT(none.events, IsEmpty());
  EXPECT_EQ(none.next, 7u);
}

TEST_F(EventLogTest, AReaderOfAnEarlierStartReadsAllEvents) {
  EventLog log = Log(10);
  log.Record(EventOf("iris", "one"));
  EXPECT_THAT(TextsOf(log.Read(2, "", kAll)), IsEmpty());
  EXPECT_THAT(TextsOf(log.Read(3, "", kAll)), ElementsAre("one"));
}

TEST_F(EventLogTest, AnEventOrWakeEndsAWait) {
  EventLog log = Log(10);
  std::thread recorder([&log] { log.Record(EventOf("iris", "one")); });
  log.Await(1, absl::InfiniteFuture());
  EXPECT_THAT(TextsOf(log.Read(1, "", kAll)), ElementsAre("one"));
  recorder.join();
  std::thread waker([&log] { log.Wake(); });
  log.Await(2, absl::InfiniteFuture());
  waker.join();
  log.Await(2, absl::InfinitePast());
}

}  // namespace
}  // namespace syncgrads::server
