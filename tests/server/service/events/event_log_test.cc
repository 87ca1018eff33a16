#include "server/service/events/event_log.h"

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

// The events of jobs at a time that the test sets.
class JobEventsTest : public EventLogTest {
 protected:
  void ReportCheckpoint(const std::string& error = "no space") {
    log_.Record({.kind = EventKind::kCheckpointFailed,
                 .job = "noisy",
                 .worker = "w",
                 .text = "job \"noisy\": worker \"w\" could not write the checkpoint",
                 .detail = ": " + error,
                 .level = LogLevel::kWarning});
  }
  // Lets time pass, and reports what was left out each second, as the server does.
  void Advance(int seconds) {
    for (int second = 0; second < seconds; ++second) {
      clock_.Advance(absl::Seconds(1));
      log_.ReportLeftOut();
    }
  }
  size_t CountOf(EventKind kind, const std::string& job) const {
    size_t count = 0;
    for (const auto& kept : log_.Read(1, job, kAll).events) count += kept->event.kind == kind;
    return count;
  }

  FakeClock clock_;
  EventLog log_{journal_, {.clock = clock_}};
};

TEST_F(JobEventsTest, AJobThatReportsWithoutEndDoesNotFillTheLogOrHideTheEventsOfOthers) {
  log_.Record(EventOf("honest", "job \"honest\" opens"));
  for (int report = 0; report < 20'000; ++report) ReportCheckpoint();
  Advance(9);
  EXPECT_EQ(CountOf(EventKind::kLeftOut, "noisy"), 0u);
  Advance(1);
  EXPECT_EQ(
      TextsOf(log_.Read(1, "noisy", kAll)).back(),
      "job \"noisy\": 19700 more events were left out: a job may have 300 at once, and then 1 "
      "a second");
  EXPECT_THAT(TextsOf(log_.Read(1, "honest", kAll)), ElementsAre("job \"honest\" opens"));
  EXPECT_EQ(journal_.lines().size(), 1 + 300 + 1u);
  EXPECT_EQ(log_.Read(1, "", kAll).missed, 0u);
}

TEST_F(JobEventsTest, AfterwardsAJobHasAnEventEachSecond) {
  for (int report = 0; report < 400; ++report) ReportCheckpoint();
  for (int second = 0; second < 100; ++second) {
    Advance(1);
    for (int report = 0; report < 50; ++report) ReportCheckpoint();
  }
  EXPECT_EQ(CountOf(EventKind::kCheckpointFailed, "noisy"), 400u);
  EXPECT_EQ(CountOf(EventKind::kLeftOut, "noisy"), 10u);
}

TEST_F(JobEventsTest, LongTextsCountAccordingToTheirLength) {
  log_.Record(EventOf("honest", "job \"honest\" opens"));
  for (int report = 0; report < 20'000; ++report) ReportCheckpoint(std::string(8000, 'e'));
  EXPECT_EQ(CountOf(EventKind::kCheckpointFailed, "noisy"), 300 / 8u);
  EXPECT_THAT(TextsOf(log_.Read(1, "honest", kAll)), ElementsAre("job \"honest\" opens"));
}

TEST_F(JobEventsTest, TheEndOfAJobIsStillRecorded) {
  for (int report = 0; report < 400; ++report) ReportCheckpoint();
  log_.Record({.kind = EventKind::kClosed, .job = "noisy", .text = "job \"noisy\" is closed"});
  EXPECT_EQ(CountOf(EventKind::kClosed, "noisy"), 1u);
  // Also such events are limited.
  for (int i = 0; i < 1000; ++i) log_.Record({.kind = EventKind::kClosed, .job = "noisy"});
  EXPECT_EQ(CountOf(EventKind::kClosed, "noisy"), 20u);
}

TEST_F(JobEventsTest, TheEventsOfTheServerAreNotLimited) {
  for (int i = 0; i < 900; ++i) log_.Record({.kind = EventKind::kServerConnected});
  EXPECT_EQ(CountOf(EventKind::kServerConnected, ""), 900u);
}

TEST_F(JobEventsTest, WarningsAboutAJobCountAsItsEvents) {
  for (int i = 0; i < 400; ++i) log_.WarnAbout("noisy", "a round waits");
  EXPECT_EQ(journal_.lines().size(), 300u);
  ReportCheckpoint();
  EXPECT_EQ(CountOf(EventKind::kCheckpointFailed, "noisy"), 0u);
  Advance(10);
  EXPECT_THAT(TextsOf(log_.Read(1, "noisy", kAll)),
              ElementsAre(testing::HasSubstr("\"noisy\": 101 more events were left out")));
}

TEST_F(JobEventsTest, NewNamesOfOneNetworkDoNotFillTheLog) {
  log_.SetOrigin("honest", "10.0.0.1");
  for (int job = 0; job < 100; ++job) {
    const std::string name = absl::StrCat("noisy-", job);
    log_.SetOrigin(name, "10.0.0.2");
    for (int event = 0; event < 300; ++event) log_.WarnAbout(name, "a round waits");
  }
  EXPECT_EQ(journal_.lines().size(), 5 * 300u);
  log_.Record(EventOf("honest", "job \"honest\" opens"));
  EXPECT_THAT(TextsOf(log_.Read(1, "honest", kAll)), ElementsAre("job \"honest\" opens"));
  Advance(10);
  EXPECT_THAT(
      TextsOf(log_.Read(1, "", kAll)),
      testing::Contains(testing::HasSubstr("jobs of 10.0.0.2: 28500 more events were left out: the "
                                           "jobs of one address may have 1500 at once")));
}

TEST_F(JobEventsTest, NewNamesOfManyNetworksDoNotFillTheLog) {
  for (int job = 0; job < 200; ++job) {
    const std::string name = absl::StrCat("noisy-", job);
    log_.SetOrigin(name, absl::StrCat("10.0.0.", job));
    for (int event = 0; event < 300; ++event) log_.WarnAbout(name, "a round waits");
  }
  EXPECT_EQ(journal_.lines().size(), 20 * 300u);
  Advance(10);
  EXPECT_THAT(TextsOf(log_.Read(1, "", kAll)),
              testing::Contains(testing::HasSubstr("all jobs: 54000 more events were left out")));
  // One line says so, not one for each job.
  EXPECT_EQ(journal_.lines().size(), 20 * 300u + 1);
}

TEST(JobEventLimitsTest, TheFirstNetworkOfAJobCountsUntilItIsForgotten) {
  FakeClock clock;
  JobEventLimits limits({.at_once = 1, .each_second = 0, .network = 2, .max_origins = 3}, clock);
  EXPECT_TRUE(limits.SetOrigin("a", "x"));
  EXPECT_FALSE(limits.SetOrigin("a", "y"));
  EXPECT_TRUE(limits.SetOrigin("b", "x"));
  EXPECT_TRUE(limits.SetOrigin("c", "x"));
  EXPECT_TRUE(limits.Pass("a", 0, false));
  EXPECT_TRUE(limits.Pass("b", 0, false));
  EXPECT_FALSE(limits.Pass("c", 0, false));
  limits.ForgetOrigin("c");
  EXPECT_TRUE(limits.Pass("c", 0, false));
  EXPECT_TRUE(limits.SetOrigin("d", "x"));
  EXPECT_TRUE(limits.SetOrigin("e", "x"));
  EXPECT_TRUE(limits.SetOrigin("a", "y")) << "the oldest is forgotten";
}

TEST(JobEventLimitsTest, AJobIsForgottenWhenItMayHaveAllItsEventsAgain) {
  FakeClock clock;
  JobEventLimits limits({.at_once = 3}, clock);
  for (int event = 0; event < 5; ++event) limits.Pass("a", 0, false);
  clock.Advance(absl::Seconds(3));
  EXPECT_THAT(limits.TakeDue(), IsEmpty());
  EXPECT_EQ(limits.jobs(), 1u) << "events that were left out are still to be reported";
  clock.Advance(absl::Seconds(7));
  EXPECT_EQ(limits.TakeDue().at(0).events, 2u);
  EXPECT_EQ(limits.jobs(), 0u);
}

TEST(JobEventLimitsTest, TheNumberOfJobsIsLimitedAndThoseWithTheMostEventsStay) {
  FakeClock clock;
  JobEventLimits limits({.at_once = 5, .all = 1000, .max_jobs = 10}, clock);
  for (int event = 0; event < 6; ++event) limits.Pass("noisy", 0, false);
  for (int job = 0; job < 1000; ++job) {
    EXPECT_TRUE(limits.Pass(absl::StrCat(job), 0, false));
    EXPECT_LE(limits.jobs(), 10u);
  }
  EXPECT_FALSE(limits.Pass("noisy", 0, false));
}

}  // namespace
}  // namespace syncgrads::server
