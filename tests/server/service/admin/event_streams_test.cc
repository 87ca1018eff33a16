// Calls of Admin.Events over real gRPC.

#include "server/service/admin/event_streams.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/net/open_connections.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "server/service/calls/callback_service.h"
#include "server/service/calls/stream_deadlines.h"
#include "tests/server/core/fixtures.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::server {
namespace {

using ::syncgrads::testing::WaitUntil;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class EventStreamsTest : public ::testing::Test {
 protected:
  // Starts the service. The options are of the log and of the streams. The events of a job are not
  // limited.
  void Start(EventLogOptions log, EventStreamsOptions options) {
    log.job_limits.at_once = std::numeric_limits<double>::infinity();
    log_.emplace(journal_, std::move(log));
    streams_.emplace(*log_, ServerIndex{2}, options);
    admin_.emplace(connections_, deadlines_, *streams_, [this]() -> absl::StatusOr<bool> {
      MutexLock lock(mutex_);
      return permission_;
    });
    grpc::ServerBuilder builder;
    builder.RegisterService(&*admin_);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    server_ = builder.BuildAndStart();
    stub_ = v1::Admin::NewStub(server_->InProcessChannel({}));
  }
  ~EventStreamsTest() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  void SetPermission(absl::StatusOr<bool> permission) {
    MutexLock lock(mutex_);
    permission_ = std::move(permission);
  }

  void Record(const std::string& text, const std::string& job = "iris") {
    log_->Record({.kind = EventKind::kJoined, .job = job, .worker = "w", .text = text});
  }

  // A call. It is cancelled at its end.
  struct Call {
    Call(v1::Admin::Stub& stub, const v1::EventsRequest& request)
        : reader(stub.Events(&context, request)) {}
    ~Call() {
      context.TryCancel();
      while (!finished && Next().has_value()) continue;
      if (!finished) Finish();
    }
    // Returns the next event; nullopt if the call has ended.
    std::optional<v1::Event> Next() {
      while (next == reply.events_size()) {
        next = 0;
        if (!reader->Read(&reply)) return std::nullopt;
      }
      return reply.events(next++);
    }
    std::string NextText() {
      const std::optional<v1::Event> event = Next();
      return event.has_value() ? event->text() : "the call has ended";
    }

    grpc::Status Finish() {
      finished = true;
      return reader->Finish();
    }

    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::EventsReply>> reader;
    v1::EventsReply reply;
    int next = 0;
    bool finished = false;
  };

  std::unique_ptr<Call> Follow() { return Follow(*stub_); }
  static std::unique_ptr<Call> Follow(v1::Admin::Stub& stub) {
    v1::EventsRequest request;
    request.set_follow(true);
    return std::make_unique<Call>(stub, request);
  }
  // Returns the texts of a call that does not follow.
  std::vector<std::string> Read(const v1::EventsRequest& request = {}) {
    Call call(*stub_, request);
    std::vector<std::string> texts;
    while (std::optional<v1::Event> event = call.Next()) texts.push_back(event->text());
    const grpc::Status ended = call.Finish();
    if (!ended.ok()) texts.push_back(ended.error_message());
    return texts;
  }

  LineJournal journal_;
  Mutex mutex_;
  absl::StatusOr<bool> permission_ ABSL_GUARDED_BY(mutex_) = true;
  std::optional<EventLog> log_;
  std::optional<EventStreams> streams_;
  OpenConnections connections_{ConnectionLimits(), [](const std::string&) {}};
  StreamDeadlines deadlines_{absl::InfiniteDuration(), Clock::Real()};
  struct Admin : CallbackService {
    Admin(OpenConnections& connections, StreamDeadlines& deadlines, EventStreams& streams,
          EventsPermission permission)
        : CallbackService(*v1::EventsRequest::descriptor()->file()->service(0), connections,
                          deadlines) {
      ServeStream<v1::EventsRequest>("Events",
                                     [&streams, permission = std::move(permission)](
                                         RequestCall& call, const v1::EventsRequest& request) {
                                       streams.Events(call, request, permission);
                                     });
    }
  };
  std::optional<Admin> admin_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  std::unique_ptr<v1::Admin::Stub> stub_;
};

TEST_F(EventStreamsTest, TheNewestEventsAreThoseBeforeTheNextOne) {
  Start({.max_events = 4}, {});
  EXPECT_EQ(NewestEvents(*log_, ServerIndex{2}, 3, true).events_size(), 0);
  for (int i = 1; i <= 5; ++i) Record(absl::StrCat(i));
  const v1::EventsReply three = NewestEvents(*log_, ServerIndex{2}, 3, true);
  ASSERT_EQ(three.events_size(), 3);
  EXPECT_EQ(three.events(0).text(), "3");
  EXPECT_EQ(three.events(0).server(), 2u);
  EXPECT_EQ(three.events(2).text(), "5");
  EXPECT_EQ(NewestEvents(*log_, ServerIndex{2}, 100, true).events(0).text(), "2")
      << "1 is not kept";
}

TEST_F(EventStreamsTest, ACallReturnsWhatIsKeptAndEnds) {
  Start({}, {.max_batch = 2});
  EXPECT_THAT(Read(), ElementsAre());
  for (int i = 1; i <= 5; ++i) Record(absl::StrCat(i), i == 3 ? "digits" : "iris");
  EXPECT_THAT(Read(), ElementsAre("1", "2", "3", "4", "5"));
  v1::EventsRequest request;
  request.set_job("iris");
  EXPECT_THAT(Read(request), ElementsAre("1", "2", "4", "5"));
  request.set_after(2);
  EXPECT_THAT(Read(request), ElementsAre("4", "5"));
}

TEST_F(EventStreamsTest, AnEventHasItsFields) {
  Start({.now = [] { return absl::FromUnixMillis(1234); }}, {});
  log_->Record({.kind = EventKind::kDropped,
                .job = "iris",
                .worker = "ada",
                .text = "dropped",
                .level = LogLevel::kWarning});
  Call call(*stub_, {});
  const v1::Event event = call.Next().value();
  EXPECT_EQ(event.server(), 2u);
  EXPECT_EQ(event.number(), 1u);
  EXPECT_EQ(event.date_ms(), 1234u);
  EXPECT_EQ(event.kind(), "dropped");
  EXPECT_EQ(event.job(), "iris");
  EXPECT_EQ(event.worker(), "ada");
  EXPECT_TRUE(event.warning());
}

TEST_F(EventStreamsTest, ACallThatFollowsReceivesNewEvents) {
  Start({}, {});
  Record("old");
  const auto call = Follow();
  EXPECT_EQ(call->NextText(), "old");
  for (int i = 0; i < 10; ++i) {
    Record(absl::StrCat("new ", i));
    EXPECT_EQ(call->NextText(), absl::StrCat("new ", i));
  }
}

TEST_F(EventStreamsTest, DiscardedEventsAreReplacedByTheirNumber) {
  Start({.max_events = 2}, {});
  for (int i = 1; i <= 5; ++i) Record(absl::StrCat(i));
  EXPECT_THAT(Read(), ElementsAre("3 events are not kept any more", "4", "5"));
}

TEST_F(EventStreamsTest, TheNumberOfCallsIsLimited) {
  Start({}, {.max_streams = 2});
  Record("one");
  const auto first = Follow();
  auto second = Follow();
  EXPECT_EQ(first->NextText(), "one");
  EXPECT_EQ(second->NextText(), "one");
  EXPECT_THAT(Read(),
              ElementsAre(HasSubstr("already sends its events to 2 callers, of at most 2")));
  second = nullptr;
  EXPECT_TRUE(WaitUntil([this] { return Read() == std::vector<std::string>{"one"}; }));
  Record("two");
  EXPECT_EQ(first->NextText(), "two");
}

TEST_F(EventStreamsTest, ANetworkHasHalfOfThePlaces) {
  Start({}, {});
  Record("one");
  // The calls in the process are of one network, and those over TCP of another one.
  const auto over_tcp = v1::Admin::NewStub(
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", port_), grpc::InsecureChannelCredentials()));
  std::vector<std::unique_ptr<Call>> calls;
  const auto fill = [&](v1::Admin::Stub& stub) {
    for (int i = 0; i < 4; ++i) {
      calls.push_back(Follow(stub));
      EXPECT_EQ(calls.back()->NextText(), "one");
    }
  };
  const auto refusal = [](v1::Admin::Stub& stub) {
    const auto call = Follow(stub);
    EXPECT_FALSE(call->Next().has_value());
    const grpc::Status status = call->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    return status.error_message();
  };
  fill(*over_tcp);
  EXPECT_THAT(refusal(*over_tcp), HasSubstr("to 4 callers of 127.0.0.1, of at most 4"));
  fill(*stub_);
  EXPECT_THAT(refusal(*stub_), HasSubstr("to 8 callers, of at most 8"));
  // A call that has ended gives its place back to its network.
  calls.erase(calls.begin(), calls.begin() + 2);
  calls.push_back(Follow(*over_tcp));
  EXPECT_TRUE(WaitUntil([&] {
    if (calls.back()->Next().has_value()) return true;
    calls.back() = Follow(*over_tcp);
    return false;
  }));
  // Until the server sees the end of the second one, all places are taken.
  EXPECT_TRUE(WaitUntil(
      [&] { return absl::StrContains(refusal(*stub_), "to 4 callers of unknown, of at most 4"); }));
}

TEST_F(EventStreamsTest, ACallerThatDoesNotReadIsCancelledAndHoldsUpNobody) {
  Start({}, {.max_streams = 2, .write_timeout = absl::Milliseconds(100)});
  const auto silent = Follow();
  const auto reading = Follow();
  // More than gRPC takes from a caller that does not read.
  for (int i = 1; i <= 100; ++i) {
    Record(absl::StrCat(i, std::string(8000, '.')));
    EXPECT_THAT(reading->NextText(), HasSubstr(absl::StrCat(i, "....")));
  }
  // The server cancels the call, and has room for another one.
  v1::EventsRequest newest;
  newest.set_after(99);
  EXPECT_TRUE(WaitUntil([&] { return Read(newest)[0].substr(0, 4) == "100."; }));
  while (silent->Next().has_value()) continue;
  const grpc::Status ended = silent->Finish();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::CANCELLED) << ended.error_message();
  Record("the end");
  EXPECT_EQ(reading->NextText(), "the end");
}

TEST_F(EventStreamsTest, ASlowCallerMissesEventsAndReceivesTheirNumber) {
  Start({.max_events = 10}, {.write_timeout = absl::Hours(1), .max_batch = 1});
  const auto slow = Follow();
  Record(std::string(8000, '.'));
  EXPECT_EQ(slow->NextText(), std::string(8000, '.'));
  for (int i = 0; i < 200; ++i) Record(std::string(8000, '.'));
  Record("the end");
  uint64_t newest = 1;
  uint64_t missed = 0;
  while (const std::optional<v1::Event> event = slow->Next()) {
    ASSERT_GT(event->number(), newest);
    if (event->kind() == "missed") {
      missed += event->number() - newest;
    } else {
      ASSERT_EQ(event->number(), newest + 1);
    }
    newest = event->number();
    if (event->text() == "the end") break;
  }
  EXPECT_EQ(newest, 202u);
  EXPECT_GT(missed, 0u);
}

TEST_F(EventStreamsTest, DetailsAreForThoseWhoMayReadThem) {
  Start({}, {});
  log_->Record({.kind = EventKind::kCheckpoint, .text = "written", .detail = " to /c"});
  EXPECT_THAT(Read(), ElementsAre("written to /c"));
  EXPECT_EQ(NewestEvents(*log_, ServerIndex{2}, 1, true).events(0).text(), "written to /c");
  SetPermission(false);
  EXPECT_THAT(Read(), ElementsAre("written"));
  EXPECT_EQ(NewestEvents(*log_, ServerIndex{2}, 1, false).events(0).text(), "written");
  SetPermission(absl::PermissionDeniedError("no viewer"));
  EXPECT_THAT(Read(), ElementsAre("no viewer"));
}

TEST_F(EventStreamsTest, ACallThatFollowsEndsWhenItsCallerMayNotReadAnyMore) {
  Start({}, {.permission_interval = absl::Milliseconds(1)});
  Record("old");
  const auto call = Follow();
  EXPECT_EQ(call->NextText(), "old");
  // That it cannot be decided ends nothing.
  SetPermission(absl::UnavailableError("too many wrong tokens"));
  Record("new");
  EXPECT_EQ(call->NextText(), "new");
  SetPermission(absl::PermissionDeniedError("no viewer any more"));
  EXPECT_FALSE(call->Next().has_value());
  const grpc::Status ended = call->Finish();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(ended.error_message(), "no viewer any more");
}

TEST_F(EventStreamsTest, StopEndsAndRefusesCalls) {
  Start({}, {});
  const auto call = Follow();
  Record("one");
  EXPECT_EQ(call->NextText(), "one");
  streams_->Stop();
  EXPECT_FALSE(call->Next().has_value());
  EXPECT_EQ(call->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(Read(), ElementsAre("the server is shutting down"));
}

}  // namespace
}  // namespace syncgrads::server
