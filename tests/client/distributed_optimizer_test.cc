// Any optimizer becomes data-parallel if its update starts with the all-reduce.

#include "client/distributed_optimizer.h"

#include <cstring>
#include <functional>

#include "client/local_optimizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/workers.h"
#include "tests/testing/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::ElementsAre;

GroupSpec Spec() {
  GroupSpec spec;
  spec.name = "model";
  spec.tensors = {{"w", DType::kF32, {3}}, {"b", DType::kF32, {}}};
  return spec;
}

TEST(DistributedOptimizerTest, AppliesTheCallersOwnFunctionToTheReducedGradient) {
  Cluster cluster;
  Workers workers(cluster, 3);
  workers.Run([](uint32_t rank, Client& client) {
    const auto group = client.Register(Spec(), kTimeout);
    ASSERT_OK(group);
    std::vector<float> w = {1, 1, 1}, b = {1};
    DistributedOptimizer optimizer(
        *group, {w.data(), b.data()},
        [](TensorId, absl::Span<const std::byte> gradient, absl::Span<std::byte> parameters) {
          for (size_t i = 0; i < gradient.size(); i += 4) {
            float g, x;
            std::memcpy(&g, &gradient[i], 4);
            std::memcpy(&x, &parameters[i], 4);
            x -= 0.5f * g;
            std::memcpy(&parameters[i], &x, 4);
          }
          return absl::OkStatus();
        });
    std::vector<float> dw = {rank + 1.0f, 0, -2.0f * rank}, db = {4};
    // In the first update worker 2 has no gradient for b. In the second update no worker has one.
    void* first[] = {dw.data(), rank == 2 ? nullptr : db.data()};
    const auto counts = optimizer.Update(first, kTimeout);
    ASSERT_OK(counts);
    EXPECT_EQ((*counts)[0].most, 3u);
    EXPECT_EQ((*counts)[1].most, 2u);
    EXPECT_THAT(w, ElementsAre(0, 1, 2));
    EXPECT_THAT(b, ElementsAre(-1));
    // The mean of 0, 3 and 6 with the weights 1, 2 and 3 is 4; without weights it is 3.
    dw = {3.0f * rank, 2, 2};
    void* second[] = {dw.data(), nullptr};
    ASSERT_OK(optimizer.Update(second, rank + 1.0, kTimeout));
    EXPECT_THAT(w, ElementsAre(-2, 0, 1));
    EXPECT_THAT(b, ElementsAre(-1));
    EXPECT_TRUE(absl::IsInvalidArgument(
        optimizer.Update(absl::MakeConstSpan(first, 1), kTimeout).status()));
    ASSERT_OK(optimizer.Finish(kTimeout));
    EXPECT_OK(client.Leave(kTimeout));
  });
}

TEST(DistributedOptimizerTest, KeepsReplicasEqualWithUnevenDataAndAnOptimizerWithState) {
  Cluster cluster;
  Workers workers(cluster, 3);
  std::vector<std::vector<float>> w(3, {1, 2, 3}), b(3, {4});
  workers.Run([&](uint32_t rank, Client& client) {
    const auto group = client.Register(Spec(), kTimeout);
    ASSERT_OK(group);
    auto adam = LocalOptimizer::Create(Adam{.learning_rate = 0.1}, (*group)->layout().tensors());
    ASSERT_OK(adam);
    DistributedOptimizer optimizer(*group, {w[rank].data(), b[rank].data()},
                                   std::bind_front(&LocalOptimizer::Apply, &*adam));
    const uint64_t steps = 2 + 3 * rank;
    for (uint64_t step = 0; step < steps; ++step) {
      std::vector<float> dw = {0.3f * rank, 1.0f + step, -0.7f}, db = {0.1f * (step + rank)};
      void* gradients[] = {dw.data(), step % 2 == 0 ? db.data() : nullptr};
      ASSERT_OK(optimizer.Update(gradients, kTimeout));
    }
    const auto followed = optimizer.Finish(kTimeout);
    ASSERT_OK(followed);
    EXPECT_EQ(*followed, 8 - steps);
    EXPECT_EQ(adam->updates(TensorId{0}), 8u);
    EXPECT_EQ(adam->updates(TensorId{1}), 4u);
    EXPECT_OK(client.Leave(kTimeout));
  });
  EXPECT_EQ(w[0], w[1]);
  EXPECT_EQ(w[0], w[2]);
  EXPECT_EQ(b[0], b[1]);
  EXPECT_EQ(b[0], b[2]);
}

TEST(LocalOptimizerTest, TakesTheStepsOfMomentumThatAreWorkedOutByHand) {
  const std::vector<TensorSpec> tensors = {{"x", DType::kF64, {}}};
  auto momentum = LocalOptimizer::Create(Momentum{.learning_rate = 0.01}, tensors);
  ASSERT_OK(momentum);
  double x = 1;
  const double g = 2;
  for (double expected : {0.98, 0.942, 0.8878}) {
    ASSERT_OK(momentum->Apply(TensorId{0},
                              absl::MakeConstSpan(reinterpret_cast<const std::byte*>(&g), 8),
                              absl::MakeSpan(reinterpret_cast<std::byte*>(&x), 8)));
    EXPECT_NEAR(x, expected, 1e-12);
  }
}

TEST(LocalOptimizerTest, RefusesWhatItCannotServe) {
  EXPECT_TRUE(
      absl::IsInvalidArgument(LocalOptimizer::Create(Sgd{}, {{"i", DType::kI32, {}}}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      LocalOptimizer::Create(Sgd{.learning_rate = -1}, {{"x", DType::kF32, {}}}).status()));
  auto sgd = LocalOptimizer::Create(Sgd{}, {{"x", DType::kF32, {}}});
  ASSERT_OK(sgd);
  float x = 0;
  const auto bytes = absl::MakeSpan(reinterpret_cast<std::byte*>(&x), 4);
  EXPECT_TRUE(absl::IsInvalidArgument(sgd->Apply(TensorId{1}, bytes, bytes)));
  EXPECT_TRUE(absl::IsInvalidArgument(sgd->Apply(TensorId{0}, bytes.first(3), bytes)));
}

}  // namespace
}  // namespace syncgrads::testing
