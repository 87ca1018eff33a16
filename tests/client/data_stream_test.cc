// A data stream over gRPC, at a server that decides when it accepts the hello.

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/grpc/grpc_transport.h"
#include "gtest/gtest.h"
#include "proto/data.grpc.pb.h"

namespace syncgrads::client {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(2);

// Accepts hellos when `accepts` is notified, and refuses them if `refusal` is set.
class Server : public v1::Data::Service {
 public:
  Server() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }

  grpc::Status Exchange(grpc::ServerContext*,
                        grpc::ServerReaderWriter<v1::UpdateChunk, v1::PushChunk>* stream) override {
    v1::PushChunk push;
    stream->Read(&push);
    hello.Notify();
    accepts.WaitForNotification();
    if (refusal.has_value()) return *refusal;
    stream->SendInitialMetadata();
    while (stream->Read(&push)) {
    }
    return grpc::Status::OK;
  }

  const std::string& address() const { return address_; }

  absl::Notification hello, accepts;
  std::optional<grpc::Status> refusal;

 private:
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

class Events : public DataStreamEvents {
 public:
  void OnWritten() override { written.Notify(); }
  void OnReceived(ReceivedMessage) override {}
  void OnClosed(absl::Status status) override {
    end = std::move(status);
    closed.Notify();
  }

  absl::Notification written, closed;
  absl::Status end;
};

class DataStreamTest : public ::testing::Test {
 protected:
  // Opens a stream and sends a hello.
  void Open() {
    stream_ = transport_->OpenData(server_.address(), events_);
    stream_->Start();
    PushHeader header;
    header.hello.emplace();
    stream_->Write(std::make_shared<const OutgoingMessage>(EncodeHeader(header, 0), Pieces(),
                                                           nullptr, nullptr));
    ASSERT_TRUE(server_.hello.WaitForNotificationWithTimeout(kTimeout));
  }

  Server server_;
  const std::unique_ptr<Transport> transport_ =
      NewGrpcTransport("", std::make_shared<Connections>());
  const std::shared_ptr<Events> events_ = std::make_shared<Events>();
  std::shared_ptr<DataStream> stream_;
};

TEST_F(DataStreamTest, AHelloCountsAsWrittenWhenTheServerHasAcceptedIt) {
  Open();
  EXPECT_FALSE(events_->written.HasBeenNotified());
  server_.accepts.Notify();
  EXPECT_TRUE(events_->written.WaitForNotificationWithTimeout(kTimeout));
  stream_->Cancel();
  EXPECT_TRUE(events_->closed.WaitForNotificationWithTimeout(kTimeout));
}

TEST_F(DataStreamTest, ARefusalOfAHelloIsTheEndOfTheStream) {
  server_.refusal = grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "no such member");
  Open();
  server_.accepts.Notify();
  ASSERT_TRUE(events_->closed.WaitForNotificationWithTimeout(kTimeout));
  EXPECT_EQ(events_->end, absl::PermissionDeniedError("no such member"));
}

}  // namespace
}  // namespace syncgrads::client
