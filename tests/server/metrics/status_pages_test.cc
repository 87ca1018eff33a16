#include "server/metrics/status_pages.h"

#include <google/protobuf/util/json_util.h>
#include <httplib.h>

#include <chrono>
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/server.h"
#include "tests/common/expect_error.h"
#include "tests/server/core/fixtures.h"

namespace syncgrads::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// How long a client waits for an answer. The library's default is 5 s, which a loaded machine may
// need.
constexpr std::chrono::minutes kPatience(1);

// Serves the pages of a status that a test sets.
class StatusPagesTest : public ::testing::Test {
 protected:
  StatusPagesTest() {
    auto started = HttpServer::Start(
        {"127.0.0.1", 0},
        StatusPages([this](v1::GetStatusReply& reply) { reply = status_; },
                    [this](v1::GetStatusReply& reply) { reply = readiness_; },
                    [this](v1::Curves& curves) { curves = curves_; },
                    [this](v1::EventsReply& events) { events = events_; }),
        {.pages = StatusEvents([this](v1::GetStatusReply& reply) { reply = status_; })});
    EXPECT_THAT(started, IsOk());
    http_ = *std::move(started);
    client_ = std::make_unique<httplib::Client>("127.0.0.1", http_->address().port);
    client_->set_read_timeout(kPatience);
  }

  v1::GetStatusReply status_;
  v1::GetStatusReply readiness_;
  v1::Curves curves_;
  v1::EventsReply events_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<httplib::Client> client_;
};

TEST_F(StatusPagesTest, MetricsAreThoseOfTheServerAndOfTheProcess) {
  status_.add_jobs()->set_job("iris");
  const httplib::Result metrics = client_->Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_EQ(metrics->status, 200);
  EXPECT_THAT(metrics->get_header_value("Content-Type"), StartsWith("text/plain; version=0.0.4"));
  EXPECT_THAT(metrics->body, HasSubstr("syncgrads_members{training_job=\"iris\"} 0\n"));
  EXPECT_THAT(metrics->body, HasSubstr("process_resident_memory_bytes "));
}

TEST_F(StatusPagesTest, AServerThatIsNotReadyLivesAndGivesTheReason) {
  readiness_.set_server_index(1);
  const httplib::Result live = client_->Get("/livez");
  ASSERT_TRUE(live);
  EXPECT_EQ(live->status, 200);
  httplib::Result ready = client_->Get("/readyz");
  ASSERT_TRUE(ready);
  EXPECT_EQ(ready->status, 503);
  EXPECT_EQ(ready->body, "server 1 has no connection to the coordinator\n");
  readiness_.mutable_server()->set_coordinator_reached(true);
  ready = client_->Get("/readyz");
  ASSERT_TRUE(ready);
  EXPECT_EQ(ready->status, 200);
}

TEST_F(StatusPagesTest, TheStatusIsTheWholeMessageAsJson) {
  status_.set_server_index(3);
  status_.mutable_server()->set_memory_bytes(uint64_t{1} << 40);
  status_.add_jobs()->set_job("a \"quoted\" name");
  const httplib::Result json = client_->Get("/status.json");
  ASSERT_TRUE(json);
  EXPECT_EQ(json->status, 200);
  EXPECT_EQ(json->get_header_value("Content-Type"), "application/json");
  v1::GetStatusReply read;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json->body, &read).ok());
  EXPECT_EQ(read.SerializeAsString(), status_.SerializeAsString());
}

TEST_F(StatusPagesTest, CurvesAreTheWholeMessageAsJson) {
  v1::JobCurves& job = *curves_.add_jobs();
  job.set_job("iris");
  job.add_training()->set_loss(0.5);
  job.add_validation()->mutable_validation()->add_scores()->set_name("accuracy");
  const httplib::Result json = client_->Get("/curves.json");
  ASSERT_TRUE(json);
  EXPECT_EQ(json->status, 200);
  EXPECT_EQ(json->get_header_value("Content-Type"), "application/json");
  v1::Curves read;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json->body, &read).ok());
  EXPECT_EQ(read.SerializeAsString(), curves_.SerializeAsString());
}

TEST_F(StatusPagesTest, TheLogIsTheWholeMessageAsJson) {
  events_.add_events()->set_text("worker \"a\" joins");
  const httplib::Result json = client_->Get("/log.json");
  ASSERT_TRUE(json);
  EXPECT_EQ(json->status, 200);
  EXPECT_EQ(json->get_header_value("Content-Type"), "application/json");
  v1::EventsReply read;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json->body, &read).ok());
  EXPECT_EQ(read.SerializeAsString(), events_.SerializeAsString());
}

TEST_F(StatusPagesTest, AnEventIsTheStatusAsJsonInOneLine) {
  status_.add_jobs()->set_job("two\nlines");
  std::string received;
  client_->Get("/events", [&received](const char* data, size_t size) {
    received.append(data, size);
    return !received.ends_with("\n\n");
  });
  ASSERT_THAT(received, StartsWith("data: {"));
  EXPECT_EQ(received.find('\n'), received.size() - 2);
  v1::GetStatusReply read;
  const std::string json = received.substr(6);
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json, &read).ok());
  EXPECT_EQ(read.SerializeAsString(), status_.SerializeAsString());
}

TEST_F(StatusPagesTest, TheLivePageIsServedBesideTheStatus) {
  const httplib::Result page = client_->Get("/");
  ASSERT_TRUE(page);
  EXPECT_EQ(page->status, 200);
  EXPECT_EQ(page->get_header_value("Content-Type"), "text/html; charset=utf-8");
}

TEST(ServerStatusPagesTest, ARealServerIsReadyAndReportsItself) {
  LineJournal journal;
  ServerOptions options;
  options.bind = "127.0.0.1";
  const auto server = Server::Start(options, journal);
  ASSERT_THAT(server, IsOk());
  const auto http = HttpServer::Start(
      {"127.0.0.1", 0},
      StatusPages([&server](v1::GetStatusReply& reply) { (*server)->FillStatus(reply); },
                  [&server](v1::GetStatusReply& reply) { (*server)->FillReadiness(reply); },
                  [&server](v1::Curves& curves) { (*server)->FillCurves(curves); },
                  [&server](v1::EventsReply& events) { (*server)->FillEvents(events); }));
  ASSERT_THAT(http, IsOk());
  httplib::Client client("127.0.0.1", (*http)->address().port);
  client.set_read_timeout(kPatience);
  const httplib::Result ready = client.Get("/readyz");
  ASSERT_TRUE(ready);
  EXPECT_EQ(ready->status, 200) << ready->body;
  const httplib::Result metrics = client.Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_THAT(metrics->body, HasSubstr("syncgrads_jobs 0\n"));
  (*server)->Drain();
  const httplib::Result drained = client.Get("/readyz");
  ASSERT_TRUE(drained);
  EXPECT_EQ(drained->status, 503);
  EXPECT_THAT(drained->body, HasSubstr("server 0 is about to stop"));
  const httplib::Result log = client.Get("/log.json");
  ASSERT_TRUE(log);
  v1::EventsReply events;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(log->body, &events).ok());
  ASSERT_EQ(events.events_size(), 1);
  EXPECT_EQ(events.events(0).kind(), "draining");
  EXPECT_EQ(events.events(0).number(), 1);
}

}  // namespace
}  // namespace syncgrads::server
