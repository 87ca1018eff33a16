// What a worker finds out of its link to the coordinator, and what becomes of it.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/grpc_link_probe.h"
#include "gtest/gtest.h"
#include "tests/client/workers.h"
#include "tests/fault/tcp_proxy.h"
#include "tests/testing/cluster.h"

namespace syncgrads::testing {
namespace {

// A way to `address` of which each connection takes so many bytes a second.
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

 private:
  const std::unique_ptr<fault::TcpProxy> proxy_;
};

std::unique_ptr<Client> MakeClient(const std::string& coordinator) {
  ClientOptions options;
  options.coordinator = coordinator;
  options.job = "job";
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
  EXPECT_GT(*slow, 1e6);
  EXPECT_LT(*slow, 50e6);
}

TEST(LinkProbeTest, OfALinkThatTakesNothingInTimeItSaysSo) {
  Cluster cluster(1);
  const SlowLink link(cluster.coordinator(), 10'000);
  const std::optional<double> slow =
      client::MeasureGrpcLink(link.address(), "", absl::Milliseconds(300));
  ASSERT_TRUE(slow.has_value());
  EXPECT_LT(*slow, 1e6);
}

TEST(LinkProbeTest, AGroupIsCutSmallerForASlowLink) {
  Cluster cluster(1);
  const GroupSpec spec = {.name = "model", .tensors = {{"a", DType::kF32, {1 << 20}}}};
  const SlowLink link(cluster.coordinator(), 5'000'000);
  const std::unique_ptr<Client> client = MakeClient(link.address());
  ASSERT_OK(client->Join(kTimeout));
  const auto group = client->Register(spec, kTimeout);
  ASSERT_OK(group);
  EXPECT_LT((*group)->spec().chunk_bytes, 128u << 10) << "what one server has by default";

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
