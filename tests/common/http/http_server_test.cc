#include "common/http/http_server.h"

#include <httplib.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads {
namespace {

HttpPages Pages() {
  return {{"/a",
           [] {
             return HttpReply{200, "text/plain", "first\n"};
           }},
          {"/b",
           [] {
             return HttpReply{503, "application/json", "{}"};
           }},
          {"/c",
           [] {
             return HttpReply{.body = "third", .headers = {{"X-First", "1"}, {"X-Second", "2"}}};
           }},
          {"/throws", []() -> HttpReply { throw std::runtime_error("no page"); }}};
}

std::unique_ptr<HttpServer> StartedOnAnyPort() {
  absl::StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::Start({"127.0.0.1", 0}, Pages());
  EXPECT_THAT(server, IsOk());
  return server.ok() ? *std::move(server) : nullptr;
}

// By default, the library gives an answer 5 s, which is little on a busy machine.
void AllowTime(httplib::Client& client) {
  client.set_read_timeout(60, 0);
  client.set_write_timeout(60, 0);
}

TEST(HttpServerTest, ServesEachPageWithItsStatusAndType) {
  const auto server = StartedOnAnyPort();
  ASSERT_NE(server, nullptr);
  ASSERT_NE(server->address().port, 0);
  httplib::Client client("127.0.0.1", server->address().port);
  AllowTime(client);
  const httplib::Result a = client.Get("/a");
  ASSERT_TRUE(a) << httplib::to_string(a.error());
  EXPECT_EQ(a->status, 200);
  EXPECT_EQ(a->body, "first\n");
  EXPECT_EQ(a->get_header_value("Content-Type"), "text/plain");
  const httplib::Result b = client.Get("/b");
  ASSERT_TRUE(b) << httplib::to_string(b.error());
  EXPECT_EQ(b->status, 503);
  EXPECT_EQ(b->get_header_value("Content-Type"), "application/json");
  EXPECT_FALSE(b->has_header("X-First"));
}

TEST(HttpServerTest, SendsTheHeadersOfAPage) {
  const auto server = StartedOnAnyPort();
  ASSERT_NE(server, nullptr);
  httplib::Client client("127.0.0.1", server->address().port);
  AllowTime(client);
  const httplib::Result c = client.Get("/c");
  ASSERT_TRUE(c) << httplib::to_string(c.error());
  EXPECT_EQ(c->get_header_value("X-First"), "1");
  EXPECT_EQ(c->get_header_value("X-Second"), "2");
}

TEST(HttpServerTest, AnswersOtherPathsOtherMethodsAndPagesThatThrowWithAnErrorAndGoesOn) {
  const auto server = StartedOnAnyPort();
  ASSERT_NE(server, nullptr);
  httplib::Client client("127.0.0.1", server->address().port);
  AllowTime(client);
  const httplib::Result unknown = client.Get("/d");
  ASSERT_TRUE(unknown);
  EXPECT_EQ(unknown->status, 404);
  const httplib::Result post = client.Post("/a", "x", "text/plain");
  ASSERT_TRUE(post);
  EXPECT_EQ(post->status, 404);
  const httplib::Result throws = client.Get("/throws");
  ASSERT_TRUE(throws);
  EXPECT_EQ(throws->status, 500);
  const httplib::Result again = client.Get("/a");
  ASSERT_TRUE(again);
  EXPECT_EQ(again->status, 200);
}

TEST(HttpServerTest, APortThatIsInUseIsRefusedAndFreeAgainAfterTheEnd) {
  // Another process may take the port as soon as it is free. This does not happen every time.
  absl::Status again = absl::UnknownError("not tried");
  for (int attempt = 0; attempt < 20 && !again.ok(); ++attempt) {
    auto first = StartedOnAnyPort();
    ASSERT_NE(first, nullptr);
    const HostPort address = first->address();
    ExpectError(HttpServer::Start(address, Pages()), absl::StatusCode::kUnavailable,
                {ToString(address)});
    first.reset();
    again = HttpServer::Start(address, Pages()).status();
  }
  EXPECT_THAT(again, IsOk());
}

TEST(HttpServerTest, RefusesAnAddressThatIsNotOfThisHost) {
  // 192.0.2.0/24 is for documentation only.
  ExpectError(HttpServer::Start({"192.0.2.1", 0}, Pages()), absl::StatusCode::kUnavailable,
              {"192.0.2.1:0"});
}

}  // namespace
}  // namespace syncgrads
