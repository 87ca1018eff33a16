// The order in which a worker is sent results that it was not able to receive earlier.

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
// More than the flow control window of a connection.
constexpr uint32_t kChunkBytes = 1 << 20;

// Registers the group "wide" with one tensor of kChunks chunks. Returns the group's number.
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
  ServerOptions options;
  options.closing_threads = 1;  // otherwise chunks may be closed in another order
  testing::Cluster cluster(1, options);
  Worker slow(cluster.coordinator(), "a", 2);
  // The member that has joined first is answered first.
  ASSERT_NE(cluster.journal().WaitForLine({"\"a\"", "joins as member"}, kPatience), "");
  Worker quick(cluster.coordinator(), "b", 2);
  slow.Begin();
  quick.Begin();
  const uint32_t group = RegisterWide(slow);
  ASSERT_EQ(RegisterWide(quick), group);
  grpc::ChannelArguments narrow;
  narrow.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // otherwise the window grows
  const auto slow_stream = slow.Exchange(
      grpc::CreateCustomChannel(cluster.coordinator(), grpc::InsecureChannelCredentials(), narrow));
  const auto quick_stream = quick.Exchange();
  for (uint32_t chunk = kChunks; chunk-- > 0;) slow_stream->Write(PushOf(slow, group, chunk));
  // A backward pass pushes the chunks in this order. The slow worker is answered first, so all its
  // results are queued when the quick worker has all of its own.
  for (uint32_t chunk = kChunks; chunk-- > 0;) quick_stream->Write(PushOf(quick, group, chunk));
  for (uint32_t i = 0; i < kChunks; ++i) EXPECT_EQ(quick_stream->MustRead().error().message(), "");

  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < kChunks; ++i) order.push_back(slow_stream->MustRead().chunk());
  // The last chunk was already in flight when the others became ready.
  EXPECT_EQ(order[0], kChunks - 1);
  order.erase(order.begin());
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end())) << absl::StrJoin(order, ", ");
}

}  // namespace
}  // namespace syncgrads::server
