#include "common/http/http_server.h"

#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/file_descriptor.h"
#include "gtest/gtest.h"
#include "tests/common/expect_error.h"
#include "tests/testing/wait_until.h"

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

// Serves a stream of events that a test fills, and the pages.
class HttpEventsTest : public ::testing::Test {
 protected:
  // Each event is `data` and its number.
  void Start(std::string data, absl::Duration interval) {
    HttpEvents events;
    events.interval = interval;
    events.permission_interval = absl::ZeroDuration();
    events.pages["/events"] = [this, data = std::move(data)]() -> absl::StatusOr<std::string> {
      const int number = ++events_;
      if (number == last_) return absl::CancelledError("no more events");
      return absl::StrCat(data, number);
    };
    HttpSecurity security;
    security.refuse = [this](const HttpCaller&, const std::string&) -> std::optional<HttpReply> {
      if (!refuses_) return std::nullopt;
      return HttpReply{.status = 403};
    };
    auto started = HttpServer::Start({"127.0.0.1", 0}, Pages(), std::move(events), security);
    ASSERT_THAT(started, IsOk());
    server_ = *std::move(started);
  }
  std::unique_ptr<httplib::Client> NewClient() {
    auto client = std::make_unique<httplib::Client>("127.0.0.1", server_->address().port);
    AllowTime(*client);
    return client;
  }
  // A connection on which a stream has been requested, and from which nothing is read.
  FileDescriptor OpenWithoutReading() {
    FileDescriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(server_->address().port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    const std::string request = "GET /events HTTP/1.1\r\nHost: x\r\n\r\n";
    EXPECT_EQ(send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    return socket;
  }
  // The status with which another stream is answered.
  int StatusOfAnother() {
    int status = -1;
    NewClient()->Get(
        "/events",
        [&status](const httplib::Response& answer) {
          status = answer.status;
          return false;
        },
        [](const char*, size_t) { return false; });
    return status;
  }

  std::atomic<int> events_ = 0;
  // The number of the event in place of which a stream ends.
  std::atomic<int> last_ = -1;
  std::atomic<bool> refuses_ = false;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpEventsTest, SendsEventsAtTheIntervalUntilThereAreNoMore) {
  last_ = 4;
  Start("event ", absl::Milliseconds(1));
  std::string received;
  std::string type;
  NewClient()->Get(
      "/events",
      [&](const httplib::Response& answer) {
        type = answer.get_header_value("Content-Type");
        return true;
      },
      [&](const char* data, size_t size) {
        received.append(data, size);
        return true;
      });
  EXPECT_EQ(type, "text/event-stream");
  EXPECT_EQ(received, "data: event 1\n\ndata: event 2\n\ndata: event 3\n\n");
}

TEST_F(HttpEventsTest, ACallerHasTwoStreamsAndPagesAreServedBesideThem) {
  Start("", absl::Hours(1));
  std::vector<FileDescriptor> open;
  for (int i = 0; i < 2; ++i) open.push_back(OpenWithoutReading());
  ASSERT_TRUE(::syncgrads::testing::WaitUntil([&] { return events_ == 2; }));
  const httplib::Result refused = NewClient()->Get("/events");
  ASSERT_TRUE(refused) << httplib::to_string(refused.error());
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->body, "this caller has 2 streams of events, which is the limit for one\n");
  const httplib::Result page = NewClient()->Get("/a");
  ASSERT_TRUE(page) << httplib::to_string(page.error());
  EXPECT_EQ(page->status, 200);
}

TEST_F(HttpEventsTest, AStreamWhoseReaderIsGoneMakesRoom) {
  Start("", absl::Milliseconds(1));
  std::vector<FileDescriptor> open;
  for (int i = 0; i < 2; ++i) open.push_back(OpenWithoutReading());
  ASSERT_TRUE(::syncgrads::testing::WaitUntil([&] { return StatusOfAnother() == 503; }));
  open.clear();
  EXPECT_TRUE(::syncgrads::testing::WaitUntil([&] { return StatusOfAnother() == 200; }));
}

TEST_F(HttpEventsTest, AStreamWhoseReaderDoesNotReadIsClosed) {
  // An event is more than fits into the buffers of a connection.
  Start(std::string(16 << 20, 'x'), absl::Hours(1));
  std::vector<FileDescriptor> open;
  for (int i = 0; i < 2; ++i) open.push_back(OpenWithoutReading());
  ASSERT_TRUE(::syncgrads::testing::WaitUntil([&] { return events_ >= 2; }));
  EXPECT_TRUE(::syncgrads::testing::WaitUntil([&] { return StatusOfAnother() == 200; }));
}

TEST_F(HttpEventsTest, AStreamEndsWhenItsRequestWouldBeRefused) {
  Start("event ", absl::Milliseconds(1));
  std::string received;
  NewClient()->Get("/events", [&](const char* data, size_t size) {
    received.append(data, size);
    refuses_ = true;
    return true;
  });
  EXPECT_EQ(received.substr(0, 15), "data: event 1\n\n");
}

TEST_F(HttpEventsTest, AStreamEndsWithTheServer) {
  Start("event ", absl::Hours(1));
  std::thread reader(
      [client = NewClient()] { client->Get("/events", [](const char*, size_t) { return true; }); });
  EXPECT_TRUE(::syncgrads::testing::WaitUntil([&] { return events_ == 1; }));
  server_ = nullptr;
  reader.join();
  EXPECT_EQ(events_, 1);
}

TEST_F(HttpEventsTest, AHeadRequestTakesNoPlace) {
  Start("", absl::Hours(1));
  std::vector<FileDescriptor> open;
  for (int i = 0; i < 2; ++i) open.push_back(OpenWithoutReading());
  ASSERT_TRUE(::syncgrads::testing::WaitUntil([&] { return events_ == 2; }));
  const httplib::Result head = NewClient()->Head("/events");
  ASSERT_TRUE(head) << httplib::to_string(head.error());
  EXPECT_EQ(head->status, 200);
  EXPECT_EQ(head->get_header_value("Content-Type"), "text/event-stream");
  EXPECT_EQ(events_, 2);
}

}  // namespace
}  // namespace syncgrads
