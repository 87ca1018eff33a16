// A real server, used like by any gRPC client: with the stubs that protoc generates, or with bytes
// that no stub would send.

#include <grpcpp/create_channel.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/support/sync_stream.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/signals/protocol.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "proto/control.grpc.pb.h"
#include "proto/data.grpc.pb.h"
#include "tests/server/service/stub_worker.h"
#include "tests/testing/cluster.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::server {
namespace {

using ::syncgrads::testing::Cluster;
using ::syncgrads::testing::WaitUntil;
using ::testing::HasSubstr;

// Returns options with which no worker is dropped because the test is slow. The workers of these
// tests send no heartbeats.
ServerOptions Patient() {
  ServerOptions options;
  options.lease = absl::Hours(1);
  options.stream_grace = absl::Hours(1);
  return options;
}

// One server and two workers, "a" and "b", that have begun.
class ServiceTest : public ::testing::Test {
 protected:
  explicit ServiceTest(ServerOptions options = Patient()) : cluster_(1, options) {
    a_.emplace(cluster_.coordinator(), "a", 2);
    b_.emplace(cluster_.coordinator(), "b", 2);
    a_->Begin();
    b_->Begin();
  }

  // Both workers push the round on new streams and receive its average.
  void ExpectRoundWorks(uint64_t round) {
    const auto a = a_->Exchange(), b = b_->Exchange();
    a->Write(a_->Push(round, 1));
    b->Write(b_->Push(round, 3));
    for (DataStream* stream : {a.get(), b.get()}) {
      const v1::UpdateChunk update = stream->MustRead();
      EXPECT_EQ(update.error().message(), "");
      EXPECT_EQ(update.round(), round);
      EXPECT_EQ(update.payload(), FourOf(2));
    }
  }

  Cluster cluster_;
  std::optional<Worker> a_, b_;
};

// A stream of raw bytes to the data service.
using ByteStream = Stream<grpc::ByteBuffer, grpc::ByteBuffer>;

ByteStream RawExchange(const std::string& address) {
  const std::shared_ptr<grpc::Channel> channel = ChannelTo(address);
  return ByteStream([&channel](grpc::ClientContext* context) {
    const grpc::internal::RpcMethod method("/syncgrads.v1.Data/Exchange",
                                           grpc::internal::RpcMethod::BIDI_STREAMING, channel);
    return ByteStream::Opened(
        grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
            channel.get(), method, context));
  });
}

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

TEST_F(ServiceTest, AClientOfGeneratedStubsTakesPart) {
  for (uint64_t round : {1, 2, 3}) ExpectRoundWorks(round);
}

TEST_F(ServiceTest, TheFirstMessageOfADataStreamMustBeAHello) {
  DataStream stream(cluster_.coordinator());
  stream.Write(a_->Push(1, 1));
  ExpectStatus(stream.Finish(), grpc::StatusCode::FAILED_PRECONDITION, {"first", "hello"});
  ExpectRoundWorks(1);
}

TEST_F(ServiceTest, ThereIsOneHelloToAStream) {
  const auto stream = a_->Exchange();
  stream->Write(a_->DataHello());
  ExpectStatus(stream->Finish(), grpc::StatusCode::FAILED_PRECONDITION, {"second hello"});
  JoinStream join(cluster_.coordinator());
  v1::WorkerSignal hello = HelloOf("c", 1);
  hello.mutable_hello()->set_job("mnist");
  join.Write(hello);
  join.Write(hello);
  ExpectStatus(join.Finish(), grpc::StatusCode::FAILED_PRECONDITION, {"second hello"});
}

TEST_F(ServiceTest, ADataStreamIsRefusedForAWrongTokenJobIncarnationOrVersion) {
  const auto refused = [&](const v1::PushChunk& hello, grpc::StatusCode code,
                           std::initializer_list<std::string> parts) {
    DataStream stream(cluster_.coordinator());
    stream.Write(hello);
    ExpectStatus(stream.Finish(), code, parts);
  };
  v1::PushChunk hello = a_->DataHello();
  hello.mutable_hello()->set_token("guess");
  refused(hello, grpc::StatusCode::PERMISSION_DENIED, {"token", "\"iris\""});
  hello = a_->DataHello();
  hello.mutable_hello()->set_job("mnist");
  refused(hello, grpc::StatusCode::UNAVAILABLE, {"\"mnist\""});
  hello = a_->DataHello();
  hello.mutable_hello()->set_incarnation(7);
  refused(hello, grpc::StatusCode::FAILED_PRECONDITION, {"incarnation 7", "\"a\""});
  hello = a_->DataHello();
  hello.mutable_hello()->set_protocol_version(9);
  refused(hello, grpc::StatusCode::FAILED_PRECONDITION, {"version 9", "uses 2"});
  ExpectRoundWorks(1);
}

TEST_F(ServiceTest, BytesThatAreNoMessageEndTheirStreamAndNothingElse) {
  const auto b = b_->Exchange();
  b->Write(b_->Push(1, 3));
  for (const std::string& bytes :
       {std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), std::string("\x0a\x7f"),
        std::string(1, '\0'), std::string("\x7b")}) {
    ByteStream stream = RawExchange(cluster_.coordinator());
    stream.Write(BufferOf(a_->DataHello().SerializeAsString()));
    stream.Write(BufferOf(bytes));
    ExpectStatus(stream.Finish(), grpc::StatusCode::INVALID_ARGUMENT, {"malformed", "at byte"});
  }
  const auto a = a_->Exchange();
  a->Write(a_->Push(1, 1));
  EXPECT_EQ(a->MustRead().payload(), FourOf(2));
  EXPECT_EQ(b->MustRead().payload(), FourOf(2));
}

TEST_F(ServiceTest, TakesAPushWithItsPayloadInFront) {
  ByteStream stream = RawExchange(cluster_.coordinator());
  stream.Write(BufferOf(a_->DataHello().SerializeAsString()));
  v1::PushChunk push = a_->Push(1, 1);
  push.clear_payload();
  stream.Write(BufferOf("\x7a\x10" + FourOf(1) + push.SerializeAsString()));
  const auto b = b_->Exchange();
  b->Write(b_->Push(1, 3));
  EXPECT_EQ(b->MustRead().payload(), FourOf(2));
}

TEST_F(ServiceTest, NobodyPushesAsAnother) {
  const auto stream = a_->Exchange();
  stream->Write(b_->Push(1, 100));
  ExpectStatus(stream->Finish(), grpc::StatusCode::INVALID_ARGUMENT,
               {absl::StrCat("member ", b_->member()), absl::StrCat("member ", a_->member())});
  ExpectRoundWorks(1);
}

TEST_F(ServiceTest, ABadPushIsAnsweredAndTheStreamGoesOn) {
  const auto a = a_->Exchange();
  v1::PushChunk push = a_->Push(1, 1);
  push.set_payload(std::string(12, '\0'));
  a->Write(push);
  const v1::UpdateChunk refusal = a->MustRead();
  EXPECT_EQ(refusal.error().code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refusal.error().message(), HasSubstr("\"w\" of group \"model\" has 3 values"));
  EXPECT_THAT(refusal.error().message(), HasSubstr("layout has 4"));
  const auto b = b_->Exchange();
  a->Write(a_->Push(1, 1));
  b->Write(b_->Push(1, 3));
  EXPECT_EQ(a->MustRead().payload(), FourOf(2));
}

TEST_F(ServiceTest, APushThatIsRepeatedOnANewStreamIsAnsweredThereAndCountsOnce) {
  {
    const auto broken = a_->Exchange();
    broken->Write(a_->Push(1, 1));
    v1::ExplainRequest request;
    request.set_job("iris");
    request.set_token("secret");
    const auto admin = v1::Admin::NewStub(ChannelTo(cluster_.coordinator()));
    for (v1::ExplainReply reply; reply.waits().empty();) {  // until the push has a seat
      ASSERT_TRUE(admin->Explain(Context().get(), request, &reply).ok());
    }
  }
  ExpectRoundWorks(1);
}

TEST_F(ServiceTest, ExplainsWhomARoundWaitsFor) {
  const auto admin = v1::Admin::NewStub(ChannelTo(cluster_.coordinator()));
  v1::ExplainRequest request;
  request.set_job("iris");
  request.set_token("secret");
  v1::ExplainReply reply;
  ASSERT_TRUE(admin->Explain(Context().get(), request, &reply).ok());
  EXPECT_EQ(reply.waits_size(), 0);
  const auto a = a_->Exchange();
  a->Write(a_->Push(1, 1));
  while (reply.waits().empty()) {
    ASSERT_TRUE(admin->Explain(Context().get(), request, &reply).ok());
  }
  const v1::RoundWait& wait = reply.waits(0);
  EXPECT_EQ(wait.group_name(), "model");
  EXPECT_EQ(wait.round(), 1u);
  ASSERT_EQ(wait.missing_size(), 1);
  EXPECT_EQ(wait.missing(0).name(), "b");
  EXPECT_EQ(wait.missing(0).member(), b_->member());
  EXPECT_THAT(wait.text(), HasSubstr("step 1 of group \"model\""));
  EXPECT_THAT(wait.text(), HasSubstr("\"b\""));
  EXPECT_THAT(wait.text(), HasSubstr("tensor \"w\""));

  request.set_token("guess");
  ExpectStatus(admin->Explain(Context().get(), request, &reply),
               grpc::StatusCode::PERMISSION_DENIED, {"\"iris\""});
  request.set_job("mnist");
  ExpectStatus(admin->Explain(Context().get(), request, &reply), grpc::StatusCode::NOT_FOUND,
               {"\"mnist\""});
}

TEST_F(ServiceTest, SaysWhichJobsThereAreAndHowFarTheyAre) {
  ExpectRoundWorks(1);
  v1::GetStatusReply reply;
  const auto admin = v1::Admin::NewStub(ChannelTo(cluster_.coordinator()));
  ASSERT_TRUE(admin->GetStatus(Context().get(), {}, &reply).ok());
  EXPECT_EQ(reply.protocol_version(), kProtocolVersion);
  EXPECT_EQ(reply.server_index(), 0u);
  ASSERT_EQ(reply.jobs_size(), 1);
  EXPECT_EQ(reply.jobs(0).job(), "iris");
  EXPECT_EQ(reply.jobs(0).epoch().members_size(), 2);
  EXPECT_EQ(reply.jobs(0).epoch().members(0).name(), "a");
  ASSERT_EQ(reply.jobs(0).groups_size(), 1);
  EXPECT_EQ(reply.jobs(0).groups(0).name(), "model");
  EXPECT_EQ(reply.jobs(0).groups(0).chunks(), 1u);
  EXPECT_EQ(reply.jobs(0).groups(0).open_round(), 2u);
}

TEST_F(ServiceTest, EvictsAWorkerAndTellsItWhy) {
  const auto admin = v1::Admin::NewStub(ChannelTo(cluster_.coordinator()));
  v1::EvictRequest request;
  request.set_job("iris");
  request.set_token("guess");
  request.set_worker("b");
  request.set_reason("its disk is full");
  v1::EvictReply reply;
  ExpectStatus(admin->Evict(Context().get(), request, &reply), grpc::StatusCode::PERMISSION_DENIED,
               {"\"iris\""});
  request.set_token("secret");
  request.set_worker("nobody");
  ExpectStatus(admin->Evict(Context().get(), request, &reply), grpc::StatusCode::NOT_FOUND,
               {"\"nobody\""});
  request.set_worker("b");
  EXPECT_TRUE(admin->Evict(Context().get(), request, &reply).ok());
  const v1::JobSignal told = b_->join().Await(v1::JobSignal::kExpelled);
  EXPECT_THAT(told.expelled().message(), HasSubstr("evicted: its disk is full"));
}

TEST_F(ServiceTest, AGroupOfADTypeThatIsUnknownIsRefusedAndTheMembershipGoesOn) {
  v1::WorkerSignal request = RegisterModel(static_cast<v1::DType>(99));
  request.mutable_register_group()->mutable_spec()->set_name("odd");
  request.mutable_register_group()->set_request(17);
  a_->join().Write(request);
  const v1::JobSignal refusal = a_->join().Await(v1::JobSignal::kRefused);
  EXPECT_EQ(refusal.refused().request(), 17u);
  EXPECT_THAT(refusal.refused().error().message(), HasSubstr("99"));
  EXPECT_EQ(refusal.generation(), 1u) << "a worker takes another for the end of its membership";
  ExpectRoundWorks(1);
}

TEST_F(ServiceTest, ASignalOfNoKindEndsTheStreamOfWhoSentIt) {
  a_->join().Write(v1::WorkerSignal());
  ExpectStatus(a_->join().Finish(), grpc::StatusCode::INVALID_ARGUMENT, {"no kind"});
  ExpectRoundWorks(1);
}

TEST_F(ServiceTest, LeavingIsAnsweredAndTheStreamEndsWell) {
  v1::WorkerSignal leave;
  leave.mutable_leave()->set_request(5);
  for (std::optional<Worker>* worker : {&a_, &b_}) {
    (*worker)->join().Write(leave);
    EXPECT_EQ((*worker)->join().Await(v1::JobSignal::kDone).done().request(), 5u);
    EXPECT_TRUE((*worker)->join().Finish().ok());
  }
  // The server sends the last answer before it applies the end of the job.
  EXPECT_TRUE(WaitUntil([this] { return cluster_.server(0).all_jobs_done(); }));
  EXPECT_FALSE(cluster_.server(0).has_open_jobs());
}

TEST(JoinTest, IsRefusedForAnotherVersionOrTokenOrNoHello) {
  Cluster cluster;
  const auto refused = [&](const v1::WorkerSignal& signal, grpc::StatusCode code,
                           std::initializer_list<std::string> parts) {
    JoinStream stream(cluster.coordinator());
    stream.Write(signal);
    ExpectStatus(stream.Finish(), code, parts);
  };
  v1::WorkerSignal hello = HelloOf("a", 2);
  hello.mutable_hello()->set_protocol_version(1);
  refused(hello, grpc::StatusCode::FAILED_PRECONDITION, {"version 1", "uses 2"});
  v1::WorkerSignal heartbeat;
  heartbeat.mutable_heartbeat();
  refused(heartbeat, grpc::StatusCode::FAILED_PRECONDITION, {"first", "hello"});
  JoinStream first(cluster.coordinator());
  first.Write(HelloOf("a", 2));
  first.Await(v1::JobSignal::kWelcome);
  hello = HelloOf("b", 2);
  hello.mutable_hello()->set_token("guess");
  refused(hello, grpc::StatusCode::PERMISSION_DENIED, {"\"iris\""});
  refused(HelloOf("a", 2), grpc::StatusCode::ALREADY_EXISTS, {"\"a\"", "live"});
  EXPECT_THAT(first.Await(v1::JobSignal::kWaiting).waiting().reason(), HasSubstr("1 of 2"));
}

ServerOptions ShortGrace() {
  ServerOptions options = Patient();
  options.stream_grace = absl::Milliseconds(100);
  return options;
}

class ShortGraceTest : public ServiceTest {
 protected:
  ShortGraceTest() : ServiceTest(ShortGrace()) {}
};

TEST_F(ShortGraceTest, AWorkerThatIsGoneIsDroppedAndTheOthersGoOn) {
  const auto a = a_->Exchange();
  a->Write(a_->Push(1, 1));
  b_->join().Break();
  const v1::UpdateChunk update = a->MustRead();
  EXPECT_EQ(update.payload(), FourOf(1));
  EXPECT_EQ(update.counts(0), 1u);
  const v1::JobSignal epoch = a_->join().Await(v1::JobSignal::kEpoch);
  EXPECT_EQ(epoch.epoch().number(), 2u);
  EXPECT_EQ(epoch.epoch().members_size(), 1);
  EXPECT_NE(cluster_.journal().WaitForLine({"\"b\"", "is dropped", "stream broke"}, kPatience), "");
}

TEST(ShutdownTest, TellsMembersThatTheJobIsOver) {
  auto cluster = std::make_unique<Cluster>();
  Worker a(cluster->coordinator(), "a", 1);
  a.Begin();
  cluster = nullptr;
  EXPECT_THAT(a.join().Await(v1::JobSignal::kExpelled).expelled().message(),
              HasSubstr("shutting down"));
  ExpectStatus(a.join().Finish(), grpc::StatusCode::ABORTED, {"\"iris\"", "shutting down"});
}

TEST(FollowerServiceTest, SaysWhereTheCoordinatorIs) {
  Cluster cluster(2);
  const std::string follower = absl::StrCat("127.0.0.1:", cluster.server(1).port());
  JoinStream join(follower);
  join.Write(HelloOf("a", 1));
  ExpectStatus(join.Finish(), grpc::StatusCode::FAILED_PRECONDITION,
               {"not the coordinator", cluster.coordinator()});
  const auto stub = v1::Control::NewStub(ChannelTo(follower));
  Stream<v1::ServerSignal, v1::PlanSignal> follow(
      [&stub](grpc::ClientContext* context) { return stub->Follow(context); });
  ExpectStatus(follow.Finish(), grpc::StatusCode::FAILED_PRECONDITION, {cluster.coordinator()});
}

TEST(FollowServiceTest, RefusesServersThatCannotBelong) {
  ServerOptions options;
  options.server_token = "servers";
  Cluster cluster(2, options);
  const auto stub = v1::Control::NewStub(ChannelTo(cluster.coordinator()));
  v1::ServerHello usual;
  usual.set_protocol_version(2);
  usual.set_index(1);
  usual.set_token("servers");
  usual.set_incarnation(5);
  usual.set_address("10.0.0.1:7000");
  const auto refused = [&](const std::function<void(v1::ServerHello&)>& change,
                           grpc::StatusCode code, std::initializer_list<std::string> parts) {
    Stream<v1::ServerSignal, v1::PlanSignal> stream(
        [&stub](grpc::ClientContext* context) { return stub->Follow(context); });
    v1::ServerSignal signal;
    *signal.mutable_hello() = usual;
    change(*signal.mutable_hello());
    stream.Write(signal);
    ExpectStatus(stream.Finish(), code, parts);
  };
  constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  refused([](v1::ServerHello& hello) { hello.set_protocol_version(9); },
          grpc::StatusCode::FAILED_PRECONDITION, {"version 9", "uses 2"});
  refused([](v1::ServerHello& hello) { hello.set_token("guess"); },
          grpc::StatusCode::PERMISSION_DENIED, {"token"});
  refused([](v1::ServerHello& hello) { hello.set_index(2); }, kInvalid, {"index 2", "2 servers"});
  refused([](v1::ServerHello& hello) { hello.set_index(0); }, kInvalid, {"index 0"});
  refused([](v1::ServerHello& hello) { hello.set_incarnation(0); }, kInvalid,
          {"server 1", "incarnation 0"});
  for (const char* address : {"", "unix:/etc/passwd", "10.0.0.1", "a\nb:7000"}) {
    refused([&](v1::ServerHello& hello) { hello.set_address(address); }, kInvalid,
            {"the address of server 1"});
  }
}

TEST(TwoServersServiceTest, EachServerTakesItsOwnChunksAndRefusesTheOthers) {
  Cluster cluster(2);
  Worker a(cluster.coordinator(), "a", 1);
  a.join().Await(v1::JobSignal::kEpoch);
  v1::WorkerSignal request = RegisterModel();
  request.mutable_register_group()->mutable_spec()->set_chunk_bytes(8);
  a.join().Write(request);
  const v1::JobSignal registered = a.join().Await(v1::JobSignal::kRegistered);
  const v1::GroupPlan& plan = registered.registered().plan();
  ASSERT_EQ(plan.chunks_size(), 2);
  ASSERT_NE(plan.chunks(0).server(), plan.chunks(1).server());
  for (uint32_t server : {0, 1}) {
    DataStream stream(absl::StrCat("127.0.0.1:", cluster.server(server).port()));
    stream.Write(a.DataHello());
    for (uint32_t chunk : {0, 1}) {
      v1::PushChunk push = a.Push(1, 5);
      push.set_generation(1);
      push.set_chunk(chunk);
      push.set_payload(FourOf(5).substr(0, 8));
      stream.Write(push);
      const v1::UpdateChunk update = stream.MustRead();
      if (plan.chunks(chunk).server() == server) {
        EXPECT_EQ(update.payload(), FourOf(5).substr(0, 8)) << update.error().message();
      } else {
        EXPECT_THAT(update.error().message(),
                    HasSubstr(absl::StrCat("on server ", 1 - server, ", not on ", server)));
      }
    }
  }
}

// Asks the health service, and returns its encoded answer: kServing or kNotServing.
std::string HealthOf(const std::string& address, const std::string& service) {
  const std::shared_ptr<grpc::Channel> channel = ChannelTo(address);
  const grpc::internal::RpcMethod method("/grpc.health.v1.Health/Check",
                                         grpc::internal::RpcMethod::NORMAL_RPC, channel);
  const std::string asked =
      service.empty() ? "" : absl::StrCat("\x0a", std::string(1, service.size()), service);
  grpc::ByteBuffer request = BufferOf(asked), reply;
  const grpc::Status status = grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
      channel.get(), method, Context().get(), request, &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return BytesOf(reply);
}

constexpr char kServing[] = "\x08\x01", kNotServing[] = "\x08\x02";

TEST(StandardServicesTest, HealthAnswers) {
  Cluster cluster;
  for (const char* service : {"", "live", "ready"}) {
    EXPECT_EQ(HealthOf(cluster.coordinator(), service), kServing) << service;
  }
  cluster.server(0).Drain();
  EXPECT_EQ(HealthOf(cluster.coordinator(), ""), kNotServing);
  EXPECT_EQ(HealthOf(cluster.coordinator(), "ready"), kNotServing);
  // It would be restarted, and its jobs would end.
  EXPECT_EQ(HealthOf(cluster.coordinator(), "live"), kServing);
}

TEST(StandardServicesTest, AServerThatFollowsIsReadyWhileItReachesItsCoordinator) {
  auto coordinator = std::make_unique<Cluster>(2, Patient());
  ServerOptions options = Patient();
  options.bind = "127.0.0.1";
  options.index = 1;
  testing::RecordingJournal journal;
  std::unique_ptr<Server> follower;
  {
    // The coordinator has one server only, and refuses this one.
    Cluster other(1, Patient());
    options.coordinator = other.coordinator();
    auto started = Server::Start(options, journal);
    ASSERT_TRUE(started.ok());
    follower = *std::move(started);
    const std::string address = absl::StrCat("127.0.0.1:", follower->port());
    EXPECT_TRUE(WaitUntil([&] { return !follower->status().ok(); }));
    EXPECT_TRUE(WaitUntil([&] { return HealthOf(address, "ready") == kNotServing; }));
    EXPECT_EQ(HealthOf(address, ""), kServing);
    EXPECT_EQ(HealthOf(address, "live"), kServing);
  }
  const std::string second = absl::StrCat("127.0.0.1:", coordinator->server(1).port());
  EXPECT_TRUE(WaitUntil([&] { return HealthOf(second, "ready") == kServing; }));
  coordinator->StopServer(0);
  EXPECT_TRUE(WaitUntil([&] { return HealthOf(second, "ready") == kNotServing; }));
  EXPECT_EQ(HealthOf(second, "live"), kServing);
}

TEST(StandardServicesTest, ReflectionListsTheServices) {
  ServerOptions options;
  options.reflection = true;
  Cluster cluster(1, options);
  const std::shared_ptr<grpc::Channel> channel = ChannelTo(cluster.coordinator());
  ByteStream stream([&channel](grpc::ClientContext* context) {
    const grpc::internal::RpcMethod method(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        grpc::internal::RpcMethod::BIDI_STREAMING, channel);
    return ByteStream::Opened(
        grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
            channel.get(), method, context));
  });
  stream.Write(BufferOf(std::string("\x3a\0", 2)));  // list_services
  const std::string reply = BytesOf(stream.MustRead());
  for (const char* service : {"Control", "Data", "Admin"}) {
    EXPECT_THAT(reply, HasSubstr(absl::StrCat("syncgrads.v1.", service)));
  }
}

}  // namespace
}  // namespace syncgrads::server
