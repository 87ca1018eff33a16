// Tests which bytes a server counts on which path to a worker.

#include <grpcpp/create_channel.h>

#include <string>
#include <vector>

#include "client/client.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "tests/client/workers.h"
#include "tests/testing/cluster.h"
#include "tests/testing/wait_until.h"

namespace syncgrads::testing {
namespace {

constexpr size_t kElements = 100'000;
constexpr uint64_t kBytes = kElements * sizeof(float);

struct Path {
  std::string name;
  bool shared_memory;
  bool unix_socket;
};

using PayloadCounts = google::protobuf::RepeatedPtrField<v1::PayloadBytes>;

uint64_t BytesBy(const std::string& path, const PayloadCounts& counts) {
  uint64_t bytes = 0;
  for (const v1::PayloadBytes& one : counts) {
    if (one.path() == path) bytes += one.bytes();
  }
  return bytes;
}

class TrafficTest : public ::testing::TestWithParam<Path> {
 protected:
  v1::ServerStatus Status() const {
    grpc::ClientContext context;
    v1::GetStatusReply reply;
    const auto admin = v1::Admin::NewStub(
        grpc::CreateChannel(cluster_.coordinator(), grpc::InsecureChannelCredentials()));
    EXPECT_TRUE(admin->GetStatus(&context, {}, &reply).ok());
    return reply.server();
  }

  const Cluster cluster_;
};

TEST_P(TrafficTest, PayloadsAreCountedOnThePathThatTheyTake) {
  Client client({.coordinator = cluster_.coordinator(),
                 .job = "job",
                 .rank = 0,
                 .world_size = 1,
                 .shared_memory = GetParam().shared_memory,
                 .unix_socket = GetParam().unix_socket});
  ASSERT_OK(client.Join(kTimeout));
  GroupSpec spec;
  spec.name = "model";
  spec.tensors = {{"w", DType::kF32, {int64_t{kElements}}}};
  const auto group = client.Register(spec, kTimeout);
  ASSERT_OK(group);
  std::vector<float> values(kElements, 1), result(kElements);
  // A worker begins on TCP and moves to its path when the server has named it; what is under way
  // then is sent twice. From some step on, each step takes that path alone.
  const auto took_its_path = [](const PayloadCounts& before, const PayloadCounts& after) {
    for (const std::string path : {"tcp", "unix", "shared_memory"}) {
      const uint64_t expected = path == GetParam().name ? kBytes : 0;
      if (BytesBy(path, after) - BytesBy(path, before) != expected) return false;
    }
    return true;
  };
  EXPECT_TRUE(WaitUntil([&] {
    const v1::ServerStatus before = Status();
    EXPECT_OK((*group)->Push(TensorId{0}, values.data(), kBytes, result.data()));
    EXPECT_OK((*group)->WaitStep(kTimeout));
    const v1::ServerStatus after = Status();
    return took_its_path(before.received(), after.received()) &&
           took_its_path(before.sent(), after.sent());
  })) << Status().ShortDebugString();
  ASSERT_OK((*group)->End(kTimeout));
  ASSERT_OK(client.Leave(kTimeout));
}

INSTANTIATE_TEST_SUITE_P(AllPaths, TrafficTest,
                         ::testing::Values(Path{"shared_memory", true, true},
                                           Path{"unix", false, true}, Path{"tcp", false, false}),
                         [](const auto& path) { return path.param.name; });

}  // namespace
}  // namespace syncgrads::testing
