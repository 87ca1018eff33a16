// Calls with one request over real gRPC: of clients that call them as their .proto file says, and
// of clients that send what they like.

#include "server/service/calls/request_call.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/sync_stream.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
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
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(10);
// The job about which there is more to explain than gRPC sends to a client that does not read.
constexpr char kLarge[] = "large";

// Explain returns the length of the job's name. The answers of Events are written by the test.
class Service : public CallbackService, public RequestCall::Events {
 public:
  Service(OpenConnections& connections, StreamDeadlines& deadlines)
      : CallbackService(*v1::ExplainRequest::descriptor()->file()->service(0), connections,
                        deadlines) {
    ServeUnary<v1::ExplainRequest, v1::ExplainReply>(
        "Explain",
        [this](RequestCall& call, const v1::ExplainRequest& request,
               v1::ExplainReply& reply) -> absl::Status {
          if (request.job().empty()) return absl::NotFoundError("no job has no name");
          call.KeepUntilOver(kept);
          reply.add_waits()->set_round(request.job().size());
          if (request.job() == kLarge) reply.add_waits()->set_group_name(std::string(8 << 20, 'x'));
          answered = true;
          return absl::OkStatus();
        });
    ServeStream<v1::EventsRequest>("Events", [this](RequestCall& call, const v1::EventsRequest&) {
      stream = call.shared_from_this();
      // The events belong to the test.
      call.SetEvents(std::shared_ptr<RequestCall::Events>(std::shared_ptr<void>(), this));
      begun.Notify();
    });
  }

  std::shared_ptr<const int> kept = std::make_shared<const int>();
  absl::Notification begun, cancelled, done;
  std::shared_ptr<RequestCall> stream;
  std::atomic<int> written = 0;
  std::atomic<bool> answered = false;

 private:
  void OnWriteDone(bool ok) override { written += ok ? 1 : 0; }
  void OnCancel() override { cancelled.Notify(); }
  void OnDone() override { done.Notify(); }
};

class RequestCallTest : public ::testing::Test {
 protected:
  using Raw = grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

  RequestCallTest() {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    server_ = builder.BuildAndStart();
    channel_ =
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials());
    stub_ = v1::Admin::NewStub(channel_);
  }
  ~RequestCallTest() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  // Begins a call of a method without a request.
  std::unique_ptr<Raw> Begin(const char* method, grpc::ClientContext& context) {
    const grpc::internal::RpcMethod of(method, grpc::internal::RpcMethod::BIDI_STREAMING, channel_);
    return std::unique_ptr<Raw>(
        grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
            channel_.get(), of, &context));
  }
  grpc::Status Explain(const std::string& job) {
    grpc::ClientContext context;
    v1::ExplainRequest request;
    request.set_job(job);
    return stub_->Explain(&context, request, &explained_);
  }
  // Returns with which status the server ends a call while time passes.
  grpc::Status FinishAsTimePasses(Raw& call) {
    grpc::Status status;
    absl::Notification over;
    std::thread client([&] {
      status = call.Finish();
      over.Notify();
    });
    EXPECT_TRUE(WaitUntil([&] {
      Pass(kTimeout);
      return over.HasBeenNotified();
    }));
    client.join();
    return status;
  }
  static grpc::ByteBuffer BytesOf(const std::string& text) {
    const grpc::Slice slice(text);
    return {&slice, 1};
  }
  void Pass(absl::Duration time) {
    clock_.Advance(time);
    deadlines_.Tick();
  }

  FakeClock clock_;
  OpenConnections connections_{ConnectionLimits(), [](const std::string&) {}};
  StreamDeadlines deadlines_{kTimeout, clock_};
  Service service_{connections_, deadlines_};
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Admin::Stub> stub_;
  v1::ExplainReply explained_;
};

TEST_F(RequestCallTest, ARequestHasOneAnswerOrAnError) {
  EXPECT_TRUE(Explain("four").ok());
  EXPECT_EQ(explained_.waits(0).round(), 4);
  const grpc::Status none = Explain("");
  EXPECT_EQ(none.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(none.error_message(), "no job has no name");
}

TEST_F(RequestCallTest, WhatIsKeptIsDestroyedWhenTheCallIsOver) {
  EXPECT_TRUE(Explain("four").ok());
  EXPECT_TRUE(WaitUntil([this] { return service_.kept.use_count() == 1; }));
}

TEST_F(RequestCallTest, ARequestThatIsMalformedOrTooLargeIsRefused) {
  grpc::ClientContext first, second;
  auto malformed = Begin("/syncgrads.v1.Admin/Explain", first);
  malformed->Write(BytesOf("\xff\xff"));
  EXPECT_EQ(malformed->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  auto large = Begin("/syncgrads.v1.Admin/Explain", second);
  large->Write(BytesOf(std::string(kMaxRequestBytes + 1, '\0')));
  EXPECT_EQ(large->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(RequestCallTest, ACallThatEndsWithoutARequestIsToldSo) {
  grpc::ClientContext context;
  auto call = Begin("/syncgrads.v1.Admin/Explain", context);
  call->WritesDone();
  const grpc::Status status = call->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("ended without a request"));
}

TEST_F(RequestCallTest, ARequestMustComeInTime) {
  for (const char* method : {"/syncgrads.v1.Admin/Explain", "/syncgrads.v1.Admin/Events"}) {
    grpc::ClientContext context;
    const auto call = Begin(method, context);
    const grpc::Status status = FinishAsTimePasses(*call);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("no complete request has arrived within 10s"))
        << method;
  }
  EXPECT_FALSE(service_.begun.HasBeenNotified());
}

TEST_F(RequestCallTest, AnAnswerMustBeReadInTime) {
  grpc::ClientContext context;
  const auto call = Begin("/syncgrads.v1.Admin/Explain", context);
  v1::ExplainRequest request;
  request.set_job(kLarge);
  call->Write(BytesOf(request.SerializeAsString()));
  ASSERT_TRUE(WaitUntil([this] { return service_.answered.load(); }));
  const grpc::Status status = FinishAsTimePasses(*call);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("the answer was not read within 10s"));
}

TEST_F(RequestCallTest, AStreamOfAnswersHasEvents) {
  grpc::ClientContext context;
  const auto reader = stub_->Events(&context, v1::EventsRequest());
  service_.begun.WaitForNotification();
  // An open stream has no deadline of the request any more.
  Pass(kTimeout);
  v1::EventsReply sent, received;
  sent.add_events()->set_text("begun");
  service_.stream->Write(sent);
  ASSERT_TRUE(reader->Read(&received));
  EXPECT_EQ(received.events(0).text(), "begun");
  ASSERT_TRUE(WaitUntil([this] { return service_.written == 1; }));
  service_.stream->End(absl::UnavailableError("shutting down"));
  service_.done.WaitForNotification();
  EXPECT_EQ(reader->Finish().error_message(), "shutting down");
}

TEST_F(RequestCallTest, AStreamLearnsThatItsCallerHasGone) {
  {
    grpc::ClientContext context;
    const auto reader = stub_->Events(&context, v1::EventsRequest());
    service_.begun.WaitForNotification();
    context.TryCancel();
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  service_.cancelled.WaitForNotification();
  EXPECT_FALSE(service_.done.HasBeenNotified());
  service_.stream->End(absl::OkStatus());
  service_.done.WaitForNotification();
}

}  // namespace
}  // namespace syncgrads::server
