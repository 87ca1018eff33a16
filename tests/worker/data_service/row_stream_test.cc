#include "worker/data_service/row_stream.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/rpc/credentials.h"
#include "proto/served_data.grpc.pb.h"

namespace syncgrads {
namespace {

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

}  // namespace
}  // namespace syncgrads
