// A group of very many tensors is registered, and steps with real servers.

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/client/workers.h"
#include "tests/testing/cluster.h"

namespace syncgrads::testing {
namespace {

// This many tensors take a while in a program that is not optimised.
constexpr absl::Duration kLongTimeout = absl::Minutes(4);

TEST(ManyTensorsTest, AHundredThousandTensorsAreRegisteredAndSummed) {
  Cluster cluster(2);
  Workers workers(cluster, 2);
  GroupSpec spec;
  spec.name = "model";
  spec.rule = Reduction::kSum;
  for (int t = 0; t < 100'000; ++t) {
    spec.tensors.push_back(
        {absl::StrCat("model/decoder/layers/attention/projection/kernel/", t), DType::kF32, {2}});
  }
  workers.Run([&](uint32_t rank, Client& client) {
    const absl::Time start = absl::Now();
    const auto group = client.Register(spec, kLongTimeout);
    ASSERT_OK(group);
    RecordProperty(absl::StrCat("registered_ms_", rank),
                   static_cast<int>(absl::ToInt64Milliseconds(absl::Now() - start)));
    std::vector<float> values(200'000, static_cast<float>(rank + 1));
    for (uint32_t t = 0; t < 100'000; ++t) {
      float* const tensor = &values[2 * t];
      ASSERT_OK((*group)->Push(TensorId{t}, tensor, 2 * sizeof(float), tensor));
    }
    ASSERT_OK((*group)->WaitStep(kLongTimeout));
    EXPECT_EQ(values, std::vector<float>(200'000, 3));
    EXPECT_OK(client.Leave(kLongTimeout));
  });
}

// Tensors with different compression cannot share a chunk.
TEST(ManyTensorsTest, TensorsThatAreAllCompressedDifferentlyAreRefusedOrRegisteredInGoodTime) {
  Cluster cluster;
  Workers workers(cluster, 1);
  workers.Run([](uint32_t, Client& client) {
    GroupSpec spec;
    spec.name = "model";
    for (int t = 0; t < 20'000; ++t) {
      spec.tensors.push_back({absl::StrCat("t", t), DType::kF32, {1}});
      spec.compression.push_back({{Codec::kTopK, 1e-3 + 1e-6 * t}, {}});
    }
    ASSERT_OK(client.Register(spec, kLongTimeout));
    EXPECT_OK(client.Leave(kLongTimeout));
  });
}

}  // namespace
}  // namespace syncgrads::testing
