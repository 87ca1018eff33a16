// How a real server treats peers that send invalid messages, send too late, or do not read.

#include <grpcpp/create_channel.h>
#include <grpcpp/impl/codegen/client_unary_call.h>
#include <grpcpp/impl/rpc_method.h>
#include <grpcpp/support/sync_stream.h>

#include <atomic>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/signals/protocol.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "proto/control.grpc.pb.h"
#include "proto/data.grpc.pb.h"
#include "tests/server/core/fixtures.h"
#include "tests/server/service/stub_worker.h"
#include "tests/testing/cluster.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::server {
namespace {

using ::syncgrads::testing::Cluster;
using ::syncgrads::testing::WaitUntil;

using ByteStream = Stream<grpc::ByteBuffer, grpc::ByteBuffer>;

// Returns what opens a stream, for ByteStream's constructor.
auto Opened(const std::shared_ptr<grpc::Channel>& channel, const char* method_name) {
  return [channel, method_name](grpc::ClientContext* context) {
    const grpc::internal::RpcMethod method(method_name, grpc::internal::RpcMethod::BIDI_STREAMING,
                                           channel);
    return ByteStream::Opened(
        grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
            channel.get(), method, context));
  };
}

ByteStream Raw(const std::string& address, const char* method_name) {
  return ByteStream(Opened(ChannelTo(address), method_name));
}

grpc::ByteBuffer BufferOf(const std::string& bytes) {
  grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

constexpr char kJoin[] = "/syncgrads.v1.Control/Join";
constexpr char kFollow[] = "/syncgrads.v1.Control/Follow";
constexpr char kExchange[] = "/syncgrads.v1.Data/Exchange";

TEST(StreamLimitsTest, BytesThatAreNoSignalEndTheirStreamWithAnError) {
  Cluster cluster;
  v1::WorkerSignal hello = HelloOf("a", 1);
  std::string not_utf8 = hello.SerializeAsString();
  not_utf8[not_utf8.find("iris")] = '\xff';
  for (const std::string& bytes : {std::string("garbage"), not_utf8}) {
    ByteStream join = Raw(cluster.coordinator(), kJoin);
    join.Write(BufferOf(bytes));
    ExpectStatus(join.Finish(), grpc::StatusCode::INVALID_ARGUMENT,
                 {absl::StrCat(bytes.size(), " bytes"), "not a valid WorkerSignal", "UTF-8"});
  }
  ByteStream follow = Raw(cluster.coordinator(), kFollow);
  follow.Write(BufferOf("garbage"));
  ExpectStatus(follow.Finish(), grpc::StatusCode::INVALID_ARGUMENT,
               {"7 bytes", "not a valid ServerSignal"});
  // A member's stream ends in the same way.
  ByteStream member = Raw(cluster.coordinator(), kJoin);
  member.Write(BufferOf(hello.SerializeAsString()));
  member.Write(BufferOf("garbage"));
  ExpectStatus(member.Finish(), grpc::StatusCode::INVALID_ARGUMENT, {"not a valid WorkerSignal"});
}

TEST(StreamLimitsTest, AStreamThatItsPeerHasClosedEndsWell) {
  Cluster cluster;
  const auto stub = v1::Control::NewStub(ChannelTo(cluster.coordinator()));
  const auto context = Context();
  const auto stream = stub->Join(context.get());
  EXPECT_TRUE(stream->WritesDone());
  const grpc::Status status = stream->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

// Opens a stream without a hello, and advances the server's clock until the server has ended it.
void ExpectEndWithoutHello(const Cluster& cluster, FakeClock& clock, const char* method) {
  std::atomic<bool> ended = false;
  std::thread time([&] {
    while (!ended) {
      clock.Advance(absl::Seconds(1));
      std::this_thread::yield();
    }
  });
  ExpectStatus(Raw(cluster.coordinator(), method).Finish(), grpc::StatusCode::DEADLINE_EXCEEDED,
               {"no hello"});
  ended = true;
  time.join();
}

TEST(StreamLimitsTest, StreamsWithoutAHelloEnd) {
  FakeClock clock;
  Cluster cluster(1, {}, clock);
  for (const char* method : {kJoin, kFollow, kExchange}) {
    ExpectEndWithoutHello(cluster, clock, method);
  }
  Worker worker(cluster.coordinator(), "a", 1);
  worker.Begin();
  const auto data = worker.Exchange();
  data->Write(worker.Push(1, 2));
  EXPECT_EQ(data->MustRead().payload(), FourOf(2));
  // Another stream starts and ends, so the timeout passes for the streams of the worker too.
  ExpectEndWithoutHello(cluster, clock, kExchange);
  data->Write(worker.Push(2, 3));
  EXPECT_EQ(data->MustRead().payload(), FourOf(3));
  worker.join().Write(RegisterModel());
  worker.join().Await(v1::JobSignal::kRegistered);
}

TEST(StreamLimitsTest, AFirstMessageIsSmall) {
  Cluster cluster;
  const std::string large(100000, '\0');
  for (const char* method : {kJoin, kFollow, kExchange}) {
    ByteStream stream = Raw(cluster.coordinator(), method);
    stream.Write(BufferOf(large));
    ExpectStatus(stream.Finish(), grpc::StatusCode::RESOURCE_EXHAUSTED, {"100000", "65536"});
  }
}

size_t PeakMiB() {
  std::string line;
  for (std::ifstream status("/proc/self/status"); std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stoul(line.substr(6)) >> 10;
  }
  return 0;
}

TEST(StreamLimitsTest, CompressedMessagesAreRefusedBeforeTheyAreInflated) {
  // gRPC's client answers no keepalive ping while it compresses a message. The server closes a
  // connection without answers after 20 s, so the compression must take much less time than that
  // on a loaded machine.
  constexpr size_t kMessageMiB = 32;
  Cluster cluster;
  const size_t before = PeakMiB();
  v1::ProbeRequest request;
  request.set_padding(std::string(kMessageMiB << 20, '\0'));
  const auto stub = v1::Control::NewStub(ChannelTo(cluster.coordinator()));
  const auto context = Context();
  context->set_compression_algorithm(GRPC_COMPRESS_GZIP);
  v1::ProbeReply reply;
  ExpectStatus(stub->Probe(context.get(), request, &reply), grpc::StatusCode::UNIMPLEMENTED,
               {"gzip"});
  // The client uses memory for the message and for its serialized form. A server that inflated the
  // message would use as much as one of these.
  EXPECT_LT(PeakMiB() - before, 3 * kMessageMiB - 8);
}

v1::EvictRequest Evict(const std::string& worker) {
  v1::EvictRequest request;
  request.set_job("iris");
  request.set_token("secret");
  request.set_worker(worker);
  request.set_reason("its disk is full");
  return request;
}

TEST(StreamLimitsTest, TheDataStreamsOfAMemberThatIsDroppedAreCut) {
  Cluster cluster;
  Worker a(cluster.coordinator(), "a", 2), b(cluster.coordinator(), "b", 2);
  a.Begin();
  b.Begin();
  const auto first = b.Exchange(), second = b.Exchange();
  // Each stream is registered with the server once a push is answered.
  v1::PushChunk bad = b.Push(1, 1);
  bad.set_payload("x");
  for (DataStream* stream : {first.get(), second.get()}) {
    stream->Write(bad);
    EXPECT_NE(stream->MustRead().error().code(), 0);
  }
  const auto admin = v1::Admin::NewStub(ChannelTo(cluster.coordinator()));
  v1::EvictReply reply;
  ASSERT_TRUE(admin->Evict(Context().get(), Evict("b"), &reply).ok());
  for (DataStream* stream : {first.get(), second.get()}) {
    ExpectStatus(stream->Finish(), grpc::StatusCode::UNAVAILABLE, {"dropped", "its disk is full"});
  }
  ExpectStatus(b.Exchange()->Finish(), grpc::StatusCode::ABORTED,
               {"\"b\"", "was dropped", "its disk is full"});
  const auto data = a.Exchange();
  data->Write(a.Push(1, 2));
  EXPECT_EQ(data->MustRead().payload(), FourOf(2));
}

TEST(StreamLimitsTest, TheDataStreamsOfAJobThatIsOverAreCut) {
  Cluster cluster;
  Worker a(cluster.coordinator(), "a", 1);
  a.Begin();
  const auto data = a.Exchange();
  data->Write(a.Push(1, 2));
  EXPECT_EQ(data->MustRead().payload(), FourOf(2));
  v1::WorkerSignal leave;
  leave.mutable_leave()->set_request(5);
  a.join().Write(leave);
  EXPECT_TRUE(a.join().Finish().ok());
  ExpectStatus(data->Finish(), grpc::StatusCode::UNAVAILABLE, {"\"iris\" is closed"});
}

TEST(StreamLimitsTest, AMemberHasSoManyDataStreams) {
  Cluster cluster;
  Worker a(cluster.coordinator(), "a", 1);
  a.Begin();
  std::vector<std::unique_ptr<DataStream>> streams;
  v1::PushChunk bad = a.Push(1, 1);
  bad.set_payload("x");
  for (int i = 0; i < 64; ++i) {
    streams.push_back(a.Exchange());
    streams.back()->Write(bad);
    ASSERT_NE(streams.back()->MustRead().error().code(), 0);
  }
  ExpectStatus(a.Exchange()->Finish(), grpc::StatusCode::RESOURCE_EXHAUSTED,
               {"64 data streams", "the limit is 64"});
  streams.erase(streams.begin());
  // The server detects that a stream has ended.
  grpc::Status status(grpc::StatusCode::RESOURCE_EXHAUSTED, "");
  while (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
    const auto again = a.Exchange();
    again->Write(bad);
    v1::UpdateChunk update;
    if (again->Read(update)) break;
    status = again->Finish();
  }
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
}

// Every stream of reflection occupies a thread of the server.
TEST(StreamLimitsTest, FewStreamsOfReflectionAreOpenAtATime) {
  ServerOptions options;
  options.reflection = true;
  Cluster cluster(1, options);
  const auto channel = ChannelTo(cluster.coordinator());
  std::vector<std::unique_ptr<ByteStream>> answered;
  for (int i = 0; i < 40; ++i) {
    auto stream = std::make_unique<ByteStream>(
        Opened(channel, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"));
    stream->Write(BufferOf("\x3a\x01*"));  // the list of services
    grpc::ByteBuffer answer;
    if (stream->Read(answer)) {
      answered.push_back(std::move(stream));
    } else {
      ExpectStatus(stream->Finish(), grpc::StatusCode::RESOURCE_EXHAUSTED, {});
    }
  }
  EXPECT_GE(answered.size(), 1);
  EXPECT_LE(answered.size(), 16);
}

void ExpectUnreadAnswersAreFewAndCut(const char* method, const google::protobuf::Message& request) {
  FakeClock clock;
  Cluster cluster(1, {}, clock);
  // Its windows are so small that no answer fits until it is read.
  grpc::ChannelArguments small_windows;
  small_windows.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 5);
  small_windows.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto channel = grpc::CreateCustomChannel(cluster.coordinator(),
                                                 grpc::InsecureChannelCredentials(), small_windows);
  std::vector<std::unique_ptr<ByteStream>> unread;
  for (int i = 0; i < 40; ++i) {
    unread.push_back(std::make_unique<ByteStream>(Opened(channel, method)));
    unread.back()->Write(BufferOf(request.SerializeAsString()));
  }
  // No other call has been made yet that could have one of the 16 places.
  ExpectStatus(unread.back()->Finish(), grpc::StatusCode::RESOURCE_EXHAUSTED,
               {"16 answers to 127.0.0.1 have not been read yet", "at most 16"});
  unread.pop_back();
  const auto admin = v1::Admin::NewStub(ChannelTo(cluster.coordinator()));
  grpc::Status status;
  const auto get_status = [&] {
    v1::GetStatusReply reply;
    status = admin->GetStatus(Context().get(), {}, &reply);
    return status.error_code();
  };
  ASSERT_TRUE(WaitUntil([&] { return get_status() == grpc::StatusCode::RESOURCE_EXHAUSTED; }));
  ExpectStatus(status, grpc::StatusCode::RESOURCE_EXHAUSTED,
               {"16 answers to 127.0.0.1 have not been read yet", "at most 16"});
  ASSERT_TRUE(WaitUntil([&] {
    clock.Advance(absl::Seconds(1));
    return get_status() == grpc::StatusCode::OK;
  }));
  // The server cuts what is late in one go. When it has ended a later stream, it has cut all of
  // them.
  ExpectEndWithoutHello(cluster, clock, kJoin);
  std::map<grpc::StatusCode, int> ends;
  for (const auto& stream : unread) ++ends[stream->Finish().error_code()];
  EXPECT_EQ(ends[grpc::StatusCode::DEADLINE_EXCEEDED], 16) << ::testing::PrintToString(ends);
}

TEST(StreamLimitsTest, AnswersThatNobodyReadsAreFewAndCut) {
  ExpectUnreadAnswersAreFewAndCut("/syncgrads.v1.Admin/GetStatus", v1::GetStatusRequest());
}

TEST(StreamLimitsTest, AnswersOfProbesThatNobodyReadsAreFewAndCut) {
  v1::ProbeRequest request;
  request.set_reply_bytes(uint32_t{256} << 10);
  ExpectUnreadAnswersAreFewAndCut("/syncgrads.v1.Control/Probe", request);
}

}  // namespace
}  // namespace syncgrads::server
