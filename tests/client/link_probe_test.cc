// Tests the link probe on a worker's link to the coordinator, and the use of its result.

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/grpc/grpc_link_probe.h"
#include "gtest/gtest.h"
#include "proto/control.grpc.pb.h"
#include "tests/client/workers.h"
#include "tests/fault/tcp_proxy.h"
#include "tests/testing/cluster.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::testing {
namespace {

// A proxy to `address` that limits each connection to `bytes_per_second`.
class SlowLink {
 public:
  SlowLink(const std::string& address, int64_t bytes_per_second)
      : proxy_(*fault::TcpProxy::Start([](uint16_t) { return 0; })) {
    uint32_t port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
    proxy_->SetUpstream(static_cast<uint16_t>(port));
    proxy_->SetLink(0, {.bytes_per_second = bytes_per_second});
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", proxy_->port()); }
  uint64_t passed_bytes() const { return proxy_->passed_bytes(); }

 private:
  const std::unique_ptr<fault::TcpProxy> proxy_;
};

std::unique_ptr<Client> MakeClient(const std::string& coordinator, const std::string& job) {
  ClientOptions options;
  options.coordinator = coordinator;
  options.job = job;
  options.rank = 0;
  options.world_size = 1;
  options.shared_memory = false;
  return std::make_unique<Client>(options);
}

TEST(LinkProbeTest, TellsASlowLinkFromAFastOne) {
  Cluster cluster(1);
  const SlowLink link(cluster.coordinator(), 5'000'000);
  const std::optional<double> slow = client::MeasureGrpcLink(link.address(), "", kTimeout);
  ASSERT_TRUE(slow.has_value());
  EXPECT_GT(*slow, 0) << "how much depends on how busy the machine is";
  EXPECT_LT(*slow, 50e6);
}

TEST(LinkProbeTest, MeasuresTheDirectionFromTheServer) {
  Cluster cluster(1);
  const SlowLink link(cluster.coordinator(), 5'000'000);
  const std::optional<double> slow = client::MeasureGrpcLink(
      link.address(), "", kTimeout, ChannelSecurity(), client::LinkDirection::kFromServer);
  ASSERT_TRUE(slow.has_value());
  EXPECT_GT(*slow, 0);
  EXPECT_LT(*slow, 50e6);
  // Nearly all bytes are in the replies. The proxy counts bytes after it has passed them on.
  EXPECT_TRUE(WaitUntil([&link] { return link.passed_bytes() > 4 * (256u << 10); }));
  EXPECT_LT(link.passed_bytes(), 5 * (256u << 10));
}

TEST(LinkProbeTest, AServerAnswersWithNoMoreThan256KiB) {
  Cluster cluster(1);
  const auto stub = v1::Control::NewStub(
      grpc::CreateChannel(cluster.coordinator(), grpc::InsecureChannelCredentials()));
  v1::ProbeRequest request;
  request.set_reply_bytes((256 << 10) + 1);
  v1::ProbeReply reply;
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  const grpc::Status refused = stub->Probe(&context, request, &reply);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << refused.error_message();
  request.set_reply_bytes(256 << 10);
  grpc::ClientContext again;
  EXPECT_TRUE(stub->Probe(&again, request, &reply).ok());
  EXPECT_EQ(reply.padding().size(), 256u << 10);
}

TEST(LinkProbeTest, AServerThatCannotBeReachedHasNoRate) {
  // Nothing listens on port 1, which only root may bind.
  EXPECT_FALSE(client::MeasureGrpcLink("127.0.0.1:1", "", absl::Milliseconds(300)).has_value());
}

TEST(LinkProbeTest, OfALinkThatTakesNothingInTimeItSaysSo) {
  Cluster cluster(1);
  const SlowLink link(cluster.coordinator(), 10'000);
  std::optional<double> slow;
  // A message takes 26 s. On a busy machine, the connection alone may take longer than the first
  // timeouts; or the thread may be paused before it sends the message, so that the rest of the
  // timeout is too short to show how slow the link is.
  for (absl::Duration timeout = absl::Milliseconds(300);
       slow.value_or(1e6) >= 1e6 && timeout < absl::Seconds(20); timeout *= 2) {
    slow = client::MeasureGrpcLink(link.address(), "", timeout);
  }
  ASSERT_TRUE(slow.has_value());
  EXPECT_LT(*slow, 1e6);
}

TEST(LinkProbeTest, AGroupIsCutSmallerForASlowLink) {
  Cluster cluster(1);
  const GroupSpec spec = {.name = "model", .tensors = {{"a", DType::kF32, {1 << 20}}}};
  const SlowLink link(cluster.coordinator(), 5'000'000);
  constexpr uint32_t kDefault = 128 << 10;  // the chunk size with one server
  std::unique_ptr<Client> client;
  uint32_t chunk_bytes = kDefault;
  // A client measures its link once, and gives up after a short time. On a busy machine that time
  // may be too short for the connection, so another client tries again.
  for (int attempt = 0; attempt < 10 && chunk_bytes >= kDefault; ++attempt) {
    client = MakeClient(link.address(), absl::StrCat("job ", attempt));
    ASSERT_OK(client->Join(kTimeout));
    const auto group = client->Register(spec, kTimeout);
    ASSERT_OK(group);
    chunk_bytes = (*group)->spec().chunk_bytes;
  }
  EXPECT_LT(chunk_bytes, kDefault);

  GroupSpec asked = spec;
  asked.name = "asked";
  asked.chunk_bytes = 256 << 10;
  const auto other = client->Register(asked, kTimeout);
  ASSERT_OK(other);
  EXPECT_EQ((*other)->spec().chunk_bytes, 256u << 10);
  EXPECT_OK(client->Leave(kTimeout));
}

}  // namespace
}  // namespace syncgrads::testing
