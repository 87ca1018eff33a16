// In which order a worker is sent results that it has not been able to take.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/server/service/stub_worker.h"
#include "tests/testing/cluster.h"

namespace syncgrads::server {
namespace {

constexpr uint32_t kChunks = 5;
// More than a connection's window.
constexpr uint32_t kChunkBytes = 1 << 20;

// "wide": one tensor of kChunks chunks. Returns the group's number.
uint32_t RegisterWide(Worker& worker) {
  v1::WorkerSignal signal = RegisterModel();
  v1::GroupSpec& spec = *signal.mutable_register_group()->mutable_spec();
  spec.set_name("wide");
  spec.set_chunk_bytes(kChunkBytes);
  spec.mutable_tensors(0)->set_shape(0, kChunks * kChunkBytes / sizeof(float));
  worker.join().Write(signal);
  return worker.join().Await(v1::JobSignal::kRegistered).registered().plan().group();
}

v1::PushChunk PushOf(const Worker& worker, uint32_t group, uint32_t chunk) {
  v1::PushChunk push = worker.Push(1, 0);
  push.set_group(group);
  push.set_chunk(chunk);
  push.set_payload(std::string(kChunkBytes, '\0'));
  return push;
}

TEST(UpdateOrderTest, FrontChunksOvertakeThoseThatAreWaiting) {
  testing::Cluster cluster;
  Worker slow(cluster.coordinator(), "a", 2), quick(cluster.coordinator(), "b", 2);
  slow.Begin();
  quick.Begin();
  const uint32_t group = RegisterWide(slow);
  ASSERT_EQ(RegisterWide(quick), group);
  grpc::ChannelArguments narrow;
  narrow.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // windows would be wide
  const auto slow_stream = slow.Exchange(
      grpc::CreateCustomChannel(cluster.coordinator(), grpc::InsecureChannelCredentials(), narrow));
  const auto quick_stream = quick.Exchange();
  for (uint32_t chunk = kChunks; chunk-- > 0;) slow_stream->Write(PushOf(slow, group, chunk));
  // As a backward pass does. The slow one is of rank 0, and is answered first.
  for (uint32_t chunk = kChunks; chunk-- > 0;) quick_stream->Write(PushOf(quick, group, chunk));
  for (uint32_t i = 0; i < kChunks; ++i) EXPECT_EQ(quick_stream->MustRead().error().message(), "");

  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < kChunks; ++i) order.push_back(slow_stream->MustRead().chunk());
  // One of the last was on its way when the others came.
  EXPECT_GE(order[0], kChunks / 2);
  order.erase(order.begin());
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end())) << absl::StrJoin(order, ", ");
}

}  // namespace
}  // namespace syncgrads::server
