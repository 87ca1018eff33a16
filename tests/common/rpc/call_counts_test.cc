#include "common/rpc/call_counts.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/wait_until.h"

namespace syncgrads {
namespace {

using ::syncgrads::testing::WaitUntil;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::StartsWith;

// Never takes a call: each of them waits.
class Idle : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    class Wait : public grpc::ServerGenericBidiReactor {
      void OnCancel() override { Finish(grpc::Status::CANCELLED); }
      void OnDone() override { delete this; }
    };
    return new Wait;
  }
};

std::unique_ptr<grpc::Server> StartServer(Idle& service, int& port) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  CountCalls(builder);
  return builder.BuildAndStart();
}

TEST(CallCountsTest, CountsTheCallsOfTheNewestServer) {
  Idle earlier_service, service;
  int earlier_port = 0, port = 0;
  const auto earlier = StartServer(earlier_service, earlier_port);
  const CallsOfGrpc of_earlier = CallsOfNewestServer();
  auto server = StartServer(service, port);
  const CallsOfGrpc calls = CallsOfNewestServer();
  EXPECT_EQ(calls.open(), 0);
  EXPECT_THAT(calls.begun(), IsEmpty());

  grpc::GenericStub stub(
      grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), grpc::InsecureChannelCredentials()));
  grpc::ClientContext contexts[3];
  const grpc::ByteBuffer request(nullptr, 0);
  grpc::ByteBuffer replies[3];
  std::promise<void> ends[3];
  for (int i = 0; i < 3; ++i) {
    stub.UnaryCall(&contexts[i], "/any", grpc::StubOptions(), &request, &replies[i],
                   [&ends, i](const grpc::Status&) { ends[i].set_value(); });
  }
  EXPECT_TRUE(WaitUntil([&] { return calls.open() == 3; }));
  EXPECT_THAT(calls.begun(), ElementsAre(Pair(StartsWith("127.0.0.1:"), 3)));
  EXPECT_EQ(of_earlier.open(), 0);

  for (grpc::ClientContext& context : contexts) context.TryCancel();
  for (std::promise<void>& end : ends) end.get_future().wait();
  EXPECT_TRUE(WaitUntil([&] { return calls.open() == 0; }));
  EXPECT_THAT(calls.begun(), ElementsAre(Pair(StartsWith("127.0.0.1:"), 3)));
  server->Shutdown(std::chrono::system_clock::now());
  server = nullptr;
  EXPECT_TRUE(WaitUntil([&] { return calls.begun().empty(); }));
  EXPECT_EQ(calls.open(), 0);
}

}  // namespace
}  // namespace syncgrads
