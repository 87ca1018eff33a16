// A server is destroyed while its threads close rounds.

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "common/optim/optimizer.h"
#include "tests/client/workers.h"
#include "tests/testing/cluster.h"

namespace syncgrads::testing {
namespace {

constexpr uint32_t kWorkers = 2;
// Chunks of this size are closed on the server's threads. There are many for each thread.
constexpr uint32_t kChunkBytes = 64 << 10;
constexpr size_t kElements = 64 * kChunkBytes / sizeof(float);

GroupSpec Clipped() {
  GroupSpec spec;
  spec.name = "model";
  spec.tensors = {{"a", DType::kF32, {int64_t{kElements}}}};
  spec.rule = Sgd{.learning_rate = 0.5};
  spec.clip_norm = 0.7;
  spec.chunk_bytes = kChunkBytes;
  return spec;
}

// Every chunk of a step with norms is queued when the server is destroyed. Closing a chunk uses the
// relay to the coordinator, which the server's jobs own.
TEST(ServerShutdownTest, EndsInMidStepOfAJobWithNorms) {
  for (int round = 0; round < 5; ++round) {
    server::ServerOptions options;
    options.closing_threads = 2;
    auto cluster = std::make_unique<Cluster>(1, options);
    std::optional<Workers> all;
    all.emplace(*cluster, kWorkers);
    std::vector<std::vector<float>> parameters(kWorkers, std::vector<float>(kElements, 1.0f));
    all->Run([&](uint32_t rank, Client& client) {
      const auto group = client.Register(Clipped(), kTimeout);
      ASSERT_OK(group);
      void* to = parameters[rank].data();
      ASSERT_OK((*group)->Broadcast(0, {&to, 1}, kTimeout));
      const auto memory = client.AllocateGradients(kElements * sizeof(float));
      ASSERT_OK(memory);
      float* const gradients = static_cast<float*>(*memory);
      for (size_t i = 0; i < kElements; ++i) gradients[i] = static_cast<float>(i % 7);
      ASSERT_OK((*group)->Push(TensorId{0}, gradients, kElements * sizeof(float), to));
    });
    cluster.reset();
    all.reset();
  }
}

}  // namespace
}  // namespace syncgrads::testing
