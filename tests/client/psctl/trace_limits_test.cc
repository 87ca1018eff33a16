#include <string>

#include "client/psctl/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/psctl/fake_server.h"

namespace syncgrads::client {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class TraceLimitsTest : public ::testing::Test {
 protected:
  // Records from a server that sends `reply` without end.
  absl::StatusOr<TraceSummary> RecordEndless(const v1::TraceReply& reply) {
    server_.SetEndlessTrace(reply);
    const std::string path = ::testing::TempDir() + "/trace.json";
    return RecordTimeline({.server = server_.address(),
                           .job = "iris",
                           .caller = {},
                           .timeout = absl::Minutes(2),
                           .length = absl::Seconds(1),
                           .path = path,
                           .max_bytes = size_t{1} << 20},
                          [](const std::string&) {});
  }

  FakeServer server_{0};
};

TEST_F(TraceLimitsTest, EventsBeyondTheLimitAreNamedAsMissing) {
  v1::TraceReply reply;
  v1::TracePart& part = *reply.mutable_process()->mutable_part();
  part.add_names("forward");
  part.add_threads()->set_id(1);
  for (int i = 0; i < 1000; ++i) part.add_events()->set_step(1);
  const absl::StatusOr<TraceSummary> summary = RecordEndless(reply);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_GE(summary->events, 1000u);
  // An event takes more memory than this.
  EXPECT_LE(summary->events, (size_t{1} << 20) / 16);
  EXPECT_THAT(summary->missing, ElementsAre(AllOf(HasSubstr("server 0"), HasSubstr("1048576 bytes"),
                                                  HasSubstr("--seconds"))));
  EXPECT_TRUE(absl::IsUnavailable(CheckComplete(*summary)));
}

TEST_F(TraceLimitsTest, TextsAboutMissingWorkersAreLimitedAndEscaped) {
  v1::TraceReply reply;
  reply.set_missing("worker\n" + std::string(100000, 'm'));
  const absl::StatusOr<TraceSummary> summary = RecordEndless(reply);
  ASSERT_TRUE(summary.ok()) << summary.status();
  ASSERT_GE(summary->missing.size(), 2u);
  EXPECT_LE(summary->missing.size(), 12u);
  EXPECT_THAT(summary->missing[1], HasSubstr("worker\\x0am"));
  EXPECT_THAT(summary->missing, Each(SizeIs(::testing::Le(2000u))));
}

}  // namespace
}  // namespace syncgrads::client
