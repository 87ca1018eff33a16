// Groups in which contributions are applied when they arrive. Clients and servers run in this
// process.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/workers.h"

namespace syncgrads::testing {
namespace {

constexpr uint32_t kWorkers = 3;
constexpr int64_t kElements = 64;
constexpr uint64_t kSteps = 60;

struct Replica {
  Replica(Client& client, Staleness staleness) {
    GroupSpec spec{"model", {{"w", DType::kF32, {kElements}}}, Sgd{.learning_rate = 1}};
    spec.chunk_bytes = 64;
    spec.policy = staleness;
    const auto registered = client.Register(spec, kTimeout);
    EXPECT_OK(registered);
    group = registered.ok() ? *registered : nullptr;
    void* memory = w.data();
    EXPECT_OK(group->Broadcast(0, absl::MakeSpan(&memory, 1), kTimeout));
  }
  void Step(float value) {
    gradient.assign(kElements, value);
    ASSERT_OK(group->Push(TensorId{0}, gradient.data(), BytesOf(gradient), w.data()));
    ASSERT_OK(group->WaitStep(kTimeout));
  }
  void Follow() {
    ASSERT_OK(group->End(kTimeout));
    while (true) {
      ASSERT_OK(group->Skip(TensorId{0}, w.data()));
      const auto finished = group->WaitStep(kTimeout);
      if (absl::IsOutOfRange(finished.status())) return;
      ASSERT_OK(finished);
    }
  }

  Group* group = nullptr;
  std::vector<float> w = std::vector<float>(kElements, 0);
  std::vector<float> gradient;
};

// The gradients are whole numbers, so their sum does not depend on the order.
TEST(StalenessTest, EveryGradientIsAppliedOnceAndAllEndEqual) {
  for (const std::optional<uint32_t> bound :
       {std::optional<uint32_t>(), std::optional<uint32_t>(0), std::optional<uint32_t>(3)}) {
    Cluster cluster(2);
    Workers workers(cluster, kWorkers);
    std::vector<std::unique_ptr<Replica>> replicas(kWorkers);
    workers.Run([&](uint32_t rank, Client& client) {
      replicas[rank] = std::make_unique<Replica>(client, Staleness{.bound = bound});
      // The workers have different numbers of steps.
      for (uint64_t step = 1; step <= kSteps - rank; ++step) {
        replicas[rank]->Step(static_cast<float>(1 + rank));
      }
      replicas[rank]->Follow();
    });
    float sum = 0;
    for (uint32_t rank = 0; rank < kWorkers; ++rank) sum += (1 + rank) * (kSteps - rank);
    for (const auto& replica : replicas) {
      EXPECT_EQ(replica->w, std::vector<float>(kElements, -sum));
    }
  }
}

TEST(StalenessTest, NobodyIsFurtherAheadThanTheBound) {
  constexpr uint32_t kBound = 2;
  Cluster cluster(2);
  Workers workers(cluster, kWorkers);
  std::atomic<uint64_t> pushed[kWorkers] = {};
  workers.Run([&](uint32_t rank, Client& client) {
    Replica replica(client, Staleness{.bound = kBound});
    for (uint64_t step = 1; step <= kSteps; ++step) {
      pushed[rank] = step;
      replica.Step(1);
      // The step has ended, so every other worker has begun step `step - kBound` or a later one.
      for (const std::atomic<uint64_t>& other : pushed) EXPECT_GE(other + kBound, step);
    }
    replica.Follow();
  });
}

TEST(StalenessTest, WithoutABoundAWorkerThatDoesNothingHoldsNobodyUp) {
  Cluster cluster(2);
  Workers workers(cluster, kWorkers);
  std::vector<std::unique_ptr<Replica>> replicas(kWorkers);
  workers.Run([&](uint32_t rank, Client& client) {
    replicas[rank] = std::make_unique<Replica>(client, Staleness());
  });
  for (uint64_t step = 0; step < kSteps; ++step) replicas[0]->Step(1);
  EXPECT_EQ(replicas[0]->w[0], -static_cast<float>(kSteps));
  replicas[2]->Step(1);
  EXPECT_EQ(replicas[2]->w[0], -static_cast<float>(kSteps + 1));
}

TEST(StalenessTest, AWaitThatIsTooLongNamesTheSlowest) {
  Cluster cluster(1);
  // Outlive the clients, to which the buffers of the step that does not end belong.
  std::vector<std::unique_ptr<Replica>> replicas(2);
  Workers workers(cluster, 2);
  workers.Run([&](uint32_t rank, Client& client) {
    replicas[rank] = std::make_unique<Replica>(client, Staleness{.bound = 0});
  });
  Replica& fast = *replicas[0];
  fast.gradient.assign(kElements, 1);
  ASSERT_OK(
      fast.group->Push(TensorId{0}, fast.gradient.data(), BytesOf(fast.gradient), fast.w.data()));
  const auto wait = [&] { return fast.group->WaitStep(absl::Milliseconds(500)); };
  EXPECT_THAT(AwaitReason({"for worker \"w1\""}, wait), ::testing::HasSubstr("for worker \"w1\""));
}

}  // namespace
}  // namespace syncgrads::testing
