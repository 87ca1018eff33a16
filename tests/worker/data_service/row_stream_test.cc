#include "worker/data_service/row_stream.h"

#include <gmock/gmock.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/method_handler.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/rpc/credentials.h"
#include "proto/served_data.grpc.pb.h"

namespace syncgrads {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Minutes(1);

// Each call keeps a thread until the end.
class BusyService : public v1::ServedData::Service {
 public:
  using Stream = grpc::ServerReaderWriter<v1::ServedDataReply, v1::ServedDataRequest>;

  grpc::Status Serve(grpc::ServerContext* /*context*/, Stream* stream) override {
    v1::ServedDataReply reply;
    reply.mutable_opened();
    stream->Write(reply);
    end.WaitForNotification();
    return grpc::Status::OK;
  }

  absl::Notification end;
};

TEST(RowStreamTest, AServerWithoutAThreadForTheCallCanBeTriedAgain) {
  BusyService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  // One thread for a call, and one that waits for calls.
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetResourceQuota(grpc::ResourceQuota().SetMaxThreads(2));
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const std::string address = absl::StrCat("127.0.0.1:", port);

  RowStream first(address, kTimeout, ChannelSecurity());
  ASSERT_TRUE(first.Open({}).ok());
  RowStream second(address, kTimeout, ChannelSecurity());
  const absl::Status refused = second.Open({}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("all its threads are busy"));
  service.end.Notify();
  server->Shutdown();
}

// A data server whose first answer is a message of any bytes.
class BytesServer : public grpc::Service {
 public:
  explicit BytesServer(std::string reply, bool compresses = false)
      : reply_(std::move(reply)), compresses_(compresses) {
    using Handler =
        grpc::internal::BidiStreamingHandler<BytesServer, grpc::ByteBuffer, grpc::ByteBuffer>;
    const auto serve = [](BytesServer* server, grpc::ServerContext* context, Stream* stream) {
      return server->Serve(*context, *stream);
    };
    AddMethod(new grpc::internal::RpcServiceMethod("/syncgrads.v1.ServedData/Serve",
                                                   grpc::internal::RpcMethod::BIDI_STREAMING,
                                                   new Handler(serve, this)));
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~BytesServer() override { server_->Shutdown(); }

  const std::string& address() const { return address_; }

  // Opens rows and returns the error.
  absl::Status Open(int most_reply_bytes = RowStream::kMostReplyBytes) const {
    return RowStream(address_, kTimeout, ChannelSecurity(), most_reply_bytes).Open({}).status();
  }

 private:
  using Stream = grpc::ServerReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

  grpc::Status Serve(grpc::ServerContext& context, Stream& stream) const {
    if (compresses_) context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
    grpc::ByteBuffer message;
    stream.Read(&message);
    const grpc::Slice slice(reply_);
    stream.Write(grpc::ByteBuffer(&slice, 1));
    stream.Read(&message);
    return grpc::Status::OK;
  }

  const std::string reply_;
  const bool compresses_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

// Returns a ServedDataReply whose OpenedServedData has `count` empty elements of field `number`.
std::string EmptyElements(int number, uint32_t count) {
  constexpr uint32_t kLengthDelimited = 2;
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream out(&stream);
  out.WriteTag(v1::ServedDataReply::kOpenedFieldNumber << 3 | kLengthDelimited);
  out.WriteVarint32(2 * count);
  for (uint32_t i = 0; i < count; ++i) {
    out.WriteTag(static_cast<uint32_t>(number) << 3 | kLengthDelimited);
    out.WriteVarint32(0);
  }
  out.Trim();
  return bytes;
}

void ExpectRefused(const absl::Status& status, absl::StatusCode code, const BytesServer& server,
                   const std::string& text) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(server.address()), HasSubstr(text)));
}

TEST(RowStreamTest, AMessageOfTooManyPartsIsNotParsed) {
  for (const int field :
       {v1::OpenedServedData::kShardsFieldNumber, v1::OpenedServedData::kFeaturesFieldNumber}) {
    const BytesServer server(EmptyElements(field, 5'000'000));
    ExpectRefused(server.Open(), absl::StatusCode::kDataLoss, server, "more than 4194304 parts");
  }
}

TEST(RowStreamTest, AMalformedMessageIsRefused) {
  const BytesServer server("\xff");
  ExpectRefused(server.Open(), absl::StatusCode::kDataLoss, server, "not a valid ServedDataReply");
}

TEST(RowStreamTest, AMessageThatWasNotRequestedIsRefused) {
  v1::ServedDataReply reply;
  reply.mutable_rows();
  const BytesServer server(reply.SerializeAsString());
  ExpectRefused(server.Open(), absl::StatusCode::kDataLoss, server, "a message out of order");
}

TEST(RowStreamTest, AMessageOfTooManyBytesIsRefused) {
  v1::ServedDataReply reply;
  reply.mutable_opened()->add_features(std::string(2000, 'a'));
  const BytesServer server(reply.SerializeAsString());
  EXPECT_TRUE(server.Open(3000).ok());
  ExpectRefused(server.Open(1000), absl::StatusCode::kResourceExhausted, server, "1000");
}

TEST(RowStreamTest, ACompressedMessageIsRefused) {
  v1::ServedDataReply reply;
  reply.mutable_opened()->add_features(std::string(100'000, 'a'));
  const BytesServer server(reply.SerializeAsString(), /*compresses=*/true);
  ExpectRefused(server.Open(), absl::StatusCode::kDataLoss, server, "not a valid ServedDataReply");
}

}  // namespace
}  // namespace syncgrads
