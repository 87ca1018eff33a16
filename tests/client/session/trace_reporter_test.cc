#include "client/session/trace_reporter.h"

#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/session/session.h"
#include "common/mutex.h"
#include "common/trace/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_transport.h"
#include "tests/testing/no_threads.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::client {
namespace {

using ::syncgrads::testing::NoThreads;
using ::syncgrads::testing::WaitUntil;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;

constexpr MemberId kSelf{3};
constexpr absl::Duration kLong = absl::Minutes(1);

// Keeps the reports. Only ReportTrace is thread-safe.
class ReportedTransport : public FakeTransport {
 public:
  absl::Status ReportTrace(const std::string& address, const TraceReport& report, absl::Duration,
                           const std::atomic<bool>& stop) override {
    EXPECT_EQ(address, "coordinator");
    on_report(stop);
    MutexLock lock(mutex_);
    reports_.push_back(report);
    return absl::OkStatus();
  }
  std::vector<TraceReport> reports() const {
    MutexLock lock(mutex_);
    return reports_;
  }

  // Called on the thread of the report, before it is kept. Set it before the first recording.
  std::function<void(const std::atomic<bool>&)> on_report = [](const std::atomic<bool>&) {};

 private:
  mutable Mutex mutex_;
  std::vector<TraceReport> reports_ ABSL_GUARDED_BY(mutex_);
};

// The names of all events of a report.
std::vector<std::string> EventsOf(const TraceReport& report) {
  std::vector<std::string> names;
  for (const TracedThread& thread : report.records.threads) {
    for (const TraceEvent& event : thread.events) names.push_back(event.name);
  }
  return names;
}

// The number of threads of this process.
ptrdiff_t CountThreads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

class TraceReporterTest : public ::testing::Test {
 protected:
  ReportedTransport transport_;
  TraceReporter reporter_{"coordinator", transport_};
};

TEST_F(TraceReporterTest, ReportsWhatThreadsDidUntilItIsFinished) {
  reporter_.Start({.trace = 17, .length = kLong}, kSelf);
  ASSERT_TRUE(WaitUntil(IsTracing));
  { const TraceSpan span("compute"); }
  reporter_.Finish(kLong);
  EXPECT_FALSE(IsTracing());
  { const TraceSpan span("after the end"); }
  ASSERT_THAT(transport_.reports(), ElementsAre(AllOf(Field(&TraceReport::trace, 17),
                                                      Field(&TraceReport::member, kSelf))));
  EXPECT_THAT(EventsOf(transport_.reports()[0]), ElementsAre("compute"));
}

TEST_F(TraceReporterTest, ReportsWhenTheLengthHasPassed) {
  reporter_.Start({.trace = 17, .length = absl::Milliseconds(1)}, kSelf);
  EXPECT_TRUE(WaitUntil([&] { return !transport_.reports().empty(); }));
}

TEST_F(TraceReporterTest, ARecordingThatEndsEarlyIsReported) {
  reporter_.Start({.trace = 17, .length = kLong}, kSelf);
  ASSERT_TRUE(WaitUntil(IsTracing));
  { const TraceSpan span("compute"); }
  // Another trace does not concern it.
  reporter_.Start({.trace = 18, .length = absl::ZeroDuration()}, kSelf);
  EXPECT_TRUE(IsTracing());
  reporter_.Start({.trace = 17, .length = absl::ZeroDuration()}, kSelf);
  EXPECT_TRUE(WaitUntil([&] { return !transport_.reports().empty(); }));
  ASSERT_THAT(transport_.reports(), ElementsAre(Field(&TraceReport::trace, 17)));
  EXPECT_THAT(EventsOf(transport_.reports()[0]), ElementsAre("compute"));
}

TEST_F(TraceReporterTest, ARecordingThatIsStoppedIsNotReported) {
  reporter_.Start({.trace = 17, .length = kLong}, kSelf);
  ASSERT_TRUE(WaitUntil(IsTracing));
  reporter_.Stop();
  EXPECT_TRUE(WaitUntil([] { return !IsTracing(); }));
  reporter_.Start({.trace = 18, .length = kLong}, kSelf);
  reporter_.Finish(kLong);
  EXPECT_THAT(transport_.reports(), IsEmpty());
}

TEST_F(TraceReporterTest, ANewRecordingReplacesTheOneInProgress) {
  reporter_.Start({.trace = 17, .length = kLong}, kSelf);
  ASSERT_TRUE(WaitUntil(IsTracing));
  { const TraceSpan span("first"); }
  reporter_.Start({.trace = 18, .length = kLong}, kSelf);
  reporter_.Finish(kLong);
  ASSERT_THAT(transport_.reports(), ElementsAre(Field(&TraceReport::trace, 18)));
  EXPECT_THAT(EventsOf(transport_.reports()[0]), IsEmpty());
}

TEST_F(TraceReporterTest, ManyRequestsHaveOneThreadAndTheNewestIsReported) {
  // The report of the first recording occupies the thread until all requests have come.
  std::atomic<bool> reporting = false;
  std::atomic<bool> release = false;
  transport_.on_report = [&](const std::atomic<bool>&) {
    reporting = true;
    while (!release) std::this_thread::yield();
  };
  const ptrdiff_t threads = CountThreads();
  constexpr uint64_t kRequests = 1000;
  reporter_.Start({.trace = 0, .length = absl::Milliseconds(1)}, kSelf);
  ASSERT_TRUE(WaitUntil([&] { return reporting.load(); }));
  for (uint64_t trace = 1; trace <= kRequests; ++trace) {
    reporter_.Start({.trace = trace, .length = kLong}, kSelf);
  }
  EXPECT_LE(CountThreads(), threads + 1);
  release = true;
  reporter_.Finish(kLong);
  EXPECT_THAT(transport_.reports(),
              ElementsAre(Field(&TraceReport::trace, 0), Field(&TraceReport::trace, kRequests)));
}

TEST_F(TraceReporterTest, ARecordingBeginsAfterTheThreadOfTheOneBeforeHasEnded) {
  const ptrdiff_t threads = CountThreads();
  for (uint64_t trace = 1; trace <= 100; ++trace) {
    reporter_.Start({.trace = trace, .length = kLong}, kSelf);
    reporter_.Finish(kLong);
    ASSERT_EQ(transport_.reports().size(), trace);
    EXPECT_EQ(transport_.reports().back().trace, trace);
    EXPECT_LE(CountThreads(), threads + 2);  // one may be listed for a moment after its end
  }
}

TEST_F(TraceReporterTest, ARecordingForWhichTheSystemHasNoThreadIsNotMade) {
  std::atomic<pid_t> thread = 0;
  transport_.on_report = [&](const std::atomic<bool>&) { thread = gettid(); };
  reporter_.Start({.trace = 17, .length = kLong}, kSelf);
  reporter_.Finish(kLong);
  // Until its thread has ended, a further recording needs no thread.
  const std::string task = absl::StrCat("/proc/self/task/", thread.load());
  ASSERT_TRUE(WaitUntil([&] { return !std::filesystem::exists(task); }));
  {
    const NoThreads none;
    reporter_.Start({.trace = 18, .length = kLong}, kSelf);
    // Does not wait for it.
    reporter_.Finish(absl::InfiniteDuration());
  }
  EXPECT_FALSE(IsTracing());
  reporter_.Start({.trace = 19, .length = kLong}, kSelf);
  reporter_.Finish(kLong);
  EXPECT_THAT(transport_.reports(),
              ElementsAre(Field(&TraceReport::trace, 17), Field(&TraceReport::trace, 19)));
}

TEST_F(TraceReporterTest, AnotherWorkerOfTheProcessReportsNoEvents) {
  reporter_.Start({.trace = 17, .length = kLong}, kSelf);
  ASSERT_TRUE(WaitUntil(IsTracing));
  { const TraceSpan span("compute"); }
  TraceReporter other("coordinator", transport_);
  other.Start({.trace = 17, .length = kLong}, MemberId{4});
  ASSERT_TRUE(WaitUntil([&] { return !transport_.reports().empty(); }));
  reporter_.Finish(kLong);
  ASSERT_THAT(transport_.reports(), ElementsAre(Field(&TraceReport::member, MemberId{4}),
                                                Field(&TraceReport::member, kSelf)));
  EXPECT_THAT(EventsOf(transport_.reports()[0]), IsEmpty());
  EXPECT_THAT(EventsOf(transport_.reports()[1]), ElementsAre("compute"));
}

TEST_F(TraceReporterTest, FinishWaitsForAReportThatIsSlowUntilItsTimeout) {
  // A coordinator that does not answer.
  std::atomic<bool> reporting = false;
  transport_.on_report = [&](const std::atomic<bool>& stop) {
    reporting = true;
    while (!stop) std::this_thread::yield();
  };
  reporter_.Start({.trace = 17, .length = kLong}, kSelf);
  reporter_.Finish(absl::Milliseconds(1));
  ASSERT_TRUE(WaitUntil([&] { return reporting.load(); }));
  EXPECT_THAT(transport_.reports(), IsEmpty());
  reporter_.Stop();
  EXPECT_TRUE(WaitUntil([&] { return !transport_.reports().empty(); }));
}

// After a Leave, the coordinator takes no reports of the member.
TEST(SessionTraceTest, AWorkerReportsARecordingBeforeItLeaves) {
  auto owned = std::make_unique<ReportedTransport>();
  ReportedTransport& transport = *owned;
  ClientOptions options;
  options.coordinator = "coordinator";
  options.job = "traced";
  options.name = "worker";
  Session session(std::move(options),
                  {std::move(owned), std::make_unique<FakeTimers>(), Incarnation{1}});
  EXPECT_TRUE(absl::IsDeadlineExceeded(session.Join(absl::ZeroDuration())));
  FakeControlStream& control = *transport.control.at(0);
  Welcome welcome;
  welcome.member = kSelf;
  welcome.name = "worker";
  welcome.servers = {""};
  welcome.heartbeat_interval = welcome.lease = kLong;
  control.Receive(welcome);
  control.Receive(EpochBegun{std::make_shared<const Epoch>(
      Epoch{.number = 1, .members = {{kSelf, "worker", Incarnation{1}}}})});
  ASSERT_TRUE(session.Join(kLong).ok());

  size_t sent_before_report = 0;
  transport.on_report = [&](const std::atomic<bool>&) {
    sent_before_report = control.sent.size();
    // It ends the wait of Leave, which therefore has to come after the report.
    control.Receive(Expelled{absl::AbortedError("the job is over")});
  };
  const size_t sent_before_leave = control.sent.size();
  control.Receive(TraceRequested{.trace = 17, .length = kLong});
  ASSERT_TRUE(WaitUntil(IsTracing));
  EXPECT_TRUE(absl::IsAborted(session.Leave(kLong)));
  EXPECT_EQ(transport.reports().size(), 1u);
  EXPECT_EQ(sent_before_report, sent_before_leave);
  control.Close(absl::OkStatus());
  for (const auto& stream : transport.data) stream->Close(absl::OkStatus());
}

}  // namespace
}  // namespace syncgrads::client
