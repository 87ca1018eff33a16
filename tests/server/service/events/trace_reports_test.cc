#include "server/service/events/trace_reports.h"

#include <map>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads::server {
namespace {

// The number of the trace that was drawn for a member.
uint64_t TraceOf(uint32_t member) { return 100 + member; }

v1::TraceReport ReportOf(uint32_t member, const std::string& name, bool last = false) {
  v1::TraceReport report;
  report.set_trace(TraceOf(member));
  report.set_member(member);
  report.mutable_process()->mutable_part()->add_names(name);
  report.set_last(last);
  return report;
}

std::vector<MemberReport> TwoWorkers() {
  return {{.member = MemberId{4}, .name = "ada", .rank = 0},
          {.member = MemberId{5}, .name = "bob", .rank = 1}};
}

std::map<MemberId, uint64_t> TheirTraces() {
  return {{MemberId{4}, TraceOf(4)}, {MemberId{5}, TraceOf(5)}, {MemberId{6}, TraceOf(6)}};
}

TEST(TraceReportsTest, ReportsComeOutInOrderWithTheWorkersName) {
  TraceReports reports(TwoWorkers(), TheirTraces());
  v1::TraceReport clock_only;
  clock_only.set_trace(TraceOf(5));
  clock_only.set_member(5);
  EXPECT_TRUE(reports.Add(clock_only).ok());
  EXPECT_TRUE(reports.Add(ReportOf(5, "first")).ok());
  EXPECT_TRUE(reports.Add(ReportOf(4, "second", /*last=*/true)).ok());
  for (const auto& [name, worker, rank] :
       {std::tuple("first", "bob", 1u), std::tuple("second", "ada", 0u)}) {
    const std::optional<v1::ProcessTrace> next = reports.Next(absl::InfiniteFuture());
    ASSERT_TRUE(next.has_value());
    EXPECT_EQ(next->part().names(0), name);
    EXPECT_EQ(next->worker(), worker);
    EXPECT_EQ(next->rank(), rank);
  }
  EXPECT_FALSE(reports.Next(absl::InfinitePast()).has_value());
  EXPECT_FALSE(reports.IsDone());
  ASSERT_EQ(reports.Awaited().size(), 1u);
  EXPECT_EQ(reports.Awaited()[0].name, "bob");
}

TEST(TraceReportsTest, IsDoneWhenTheLastReportsHaveBeenTaken) {
  TraceReports reports(TwoWorkers(), TheirTraces());
  reports.StopAwaiting(MemberId{4});
  std::thread worker([&] { EXPECT_TRUE(reports.Add(ReportOf(5, "x", /*last=*/true)).ok()); });
  EXPECT_TRUE(reports.Next(absl::InfiniteFuture()).has_value());
  worker.join();
  EXPECT_TRUE(reports.IsDone());
  EXPECT_FALSE(reports.Next(absl::InfiniteFuture()).has_value());
}

TEST(TraceReportsTest, AReportThatIsNotAwaitedIsRefused) {
  TraceReports reports(TwoWorkers(), TheirTraces());
  ExpectError(reports.Add(ReportOf(6, "x")), absl::StatusCode::kNotFound, {"member 6"});
  v1::TraceReport other = ReportOf(5, "x");
  other.set_trace(18);
  ExpectError(reports.Add(other), absl::StatusCode::kNotFound, {"no trace 18"});
  EXPECT_TRUE(reports.Add(ReportOf(5, "x", /*last=*/true)).ok());
  ExpectError(reports.Add(ReportOf(5, "x")), absl::StatusCode::kNotFound, {"member 5"});
}

TEST(TraceReportsTest, AWorkerCannotReportInTheNameOfAnother) {
  TraceReports reports(TwoWorkers(), TheirTraces());
  v1::TraceReport forged = ReportOf(5, "forged", /*last=*/true);
  forged.set_trace(TraceOf(4));
  ExpectError(reports.Add(forged), absl::StatusCode::kNotFound, {"member 5"});
  EXPECT_TRUE(reports.Add(ReportOf(5, "own", /*last=*/true)).ok());
  const std::optional<v1::ProcessTrace> next = reports.Next(absl::InfinitePast());
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->part().names(0), "own");
  EXPECT_FALSE(reports.Next(absl::InfinitePast()).has_value());
}

TEST(TraceReportsTest, AWorkerHasToWaitWhileTooManyBytesAreHeld) {
  TraceReports reports(TwoWorkers(), TheirTraces());
  const v1::TraceReport half = ReportOf(4, std::string(kMaxHeldTraceBytes / 2 - 1000, 'x'));
  EXPECT_TRUE(reports.Add(half).ok());
  EXPECT_TRUE(reports.Add(half).ok());
  ExpectError(reports.Add(half), absl::StatusCode::kUnavailable, {"bytes of traces wait"});
  EXPECT_TRUE(reports.Next(absl::InfinitePast()).has_value());
  EXPECT_TRUE(reports.Add(half).ok());
}

// An empty event has two bytes in its message.
TEST(TraceReportsTest, TheMemoryOfReportsCounts) {
  TraceReports reports(TwoWorkers(), TheirTraces());
  v1::TraceReport many = ReportOf(4, "many");
  for (int i = 0; i < 100'000; ++i) many.mutable_process()->mutable_part()->add_events();
  int held = 0;
  while (reports.Add(many).ok()) ++held;
  EXPECT_LT(held, 10);
}

}  // namespace
}  // namespace syncgrads::server
