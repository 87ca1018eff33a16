// What a broken or hostile server sends must not look like further lines of psctl.

#include <sstream>
#include <string>

#include "client/psctl/admin.h"
#include "client/psctl/events.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/psctl/fake_server.h"

namespace syncgrads::client {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLong = absl::Minutes(2);

TEST(ReceivedTextTest, AnEventIsOneLine) {
  FakeServer server(0);
  v1::EventsReply events;
  events.add_events()->set_text("job ends\n2030-01-01T00:00:00.000 I server 0: forged");
  server.SetEvents(events);
  for (const bool json : {false, true}) {
    std::ostringstream out;
    const absl::Status printed = PrintEvents({.server = server.address(),
                                              .job = "",
                                              .caller = {},
                                              .timeout = kLong,
                                              .follow = false,
                                              .count = 0,
                                              .json = json},
                                             out);
    EXPECT_TRUE(printed.ok()) << printed;
    EXPECT_THAT(out.str(), HasSubstr(json ? "ends\\\\x0a2030" : "ends\\x0a2030"));
    EXPECT_EQ(out.str().find('\n'), out.str().size() - 1) << out.str();
  }
}

TEST(ReceivedTextTest, ATextOfAStatusIsOneLine) {
  FakeServer server(0);
  server.Set([](v1::GetStatusReply& reply) {
    reply.mutable_server()->set_version("1.0\nserver 1, 10.0.0.1:7000: version 1.0");
  });
  Admin admin({.server = server.address(), .job = "", .caller = {}, .timeout = kLong});
  const absl::StatusOr<v1::GetStatusReply> reply = admin.GetStatus();
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->server().version(), "1.0\\x0aserver 1, 10.0.0.1:7000: version 1.0");
}

TEST(ReceivedTextTest, AnErrorIsOneLine) {
  FakeServer server(0);
  server.SetError({grpc::StatusCode::ABORTED, "no\npsctl: OK\u202e"});
  Admin admin({.server = server.address(), .job = "", .caller = {}, .timeout = kLong});
  const absl::Status error = admin.GetStatus().status();
  EXPECT_EQ(error.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(error.message()), EndsWith("no\\x0apsctl: OK\\xe2\\x80\\xae"));
  EXPECT_THAT(std::string(error.message()), Not(HasSubstr("\n")));
}

}  // namespace
}  // namespace syncgrads::client
