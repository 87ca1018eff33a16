// Tests the cost of a step in copies and allocations, counted over client, gRPC and server
// together. If a test fails, the push path has become more expensive: find the cause before
// changing a number here.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "common/group/group.h"
#include "common/status_macros.h"
#include "gtest/gtest.h"
#include "proto/admin.pb.h"
#include "tests/client/counted_memory.h"
#include "tests/client/reported_paths.h"
#include "tests/client/workers.h"
#include "tests/testing/cluster.h"

namespace syncgrads {
namespace {

using testing::Cluster;
using testing::CountedMemory;
using testing::kTimeout;
using testing::MemoryCounts;
using testing::ReportedPaths;
using testing::Workers;

constexpr uint32_t kMembers = 2;
constexpr size_t kChunks = 32;
// Smaller than the size from which CopyFar does not use memcpy, so that its copies are counted.
constexpr size_t kChunkBytes = 128 << 10;
constexpr size_t kBytes = kChunks * kChunkBytes;
constexpr int kWarmUp = 5;
constexpr int kSteps = 20;

// Returns the bytes of payloads that the server has received or sent, whichever is less, on the
// path that is to be measured.
uint64_t BytesOnPath(const server::Server& server, bool shared_memory) {
  v1::GetStatusReply status;
  server.FillStatus(status);
  const auto bytes = [shared_memory](const auto& counts) {
    uint64_t sum = 0;
    for (const v1::PayloadBytes& one : counts) {
      if (one.path() == (shared_memory ? "shared_memory" : "unix")) sum += one.bytes();
    }
    return sum;
  };
  return std::min(bytes(status.server().received()), bytes(status.server().sent()));
}

// Pushes the worker's contribution, which is the first half of `memory`. The second half is room
// for results.
using PushStep = std::function<absl::Status(Group& group, float* memory)>;

// The costs of one step, in which kMembers members contribute kBytes each.
struct StepCosts {
  double copied;             // bytes copied, as a multiple of the bytes of all contributions
  double allocations;        // number for each chunk of each member
  double large_allocations;  // number for each chunk of each member
};

std::vector<TensorSpec> OneTensor() {
  return {{"w", DType::kF32, {int64_t{kBytes / sizeof(float)}}}};
}

StepCosts Measure(bool shared_memory, bool allocate, const PushStep& push,
                  const std::vector<TensorSpec>& tensors = OneTensor()) {
  server::ServerOptions options;
  options.shared_memory = shared_memory;
  Cluster cluster(1, options);
  ReportedPaths paths;
  Workers workers(cluster, kMembers, "job", {.on_path = paths.Recorder()});
  EXPECT_TRUE(paths.AwaitCount(kMembers, absl::Now() + kTimeout));
  const absl::Time deadline = absl::Now() + kTimeout;
  std::atomic<bool> is_warm = false, is_measured = false;
  MemoryCounts before, after;
  workers.Run([&](uint32_t rank, Client& client) {
    GroupSpec spec;
    spec.name = "model";
    spec.tensors = tensors;
    spec.chunk_bytes = kChunkBytes;
    const auto group = client.Register(spec, kTimeout);
    ASSERT_OK(group);
    std::vector<float> ordinary(2 * kBytes / sizeof(float));
    float* memory = ordinary.data();
    if (allocate) {
      const auto allocated = client.AllocateGradients(2 * kBytes);
      ASSERT_OK(allocated);
      memory = static_cast<float*>(*allocated);
    }
    // The first payloads may take another path, because memory is offered to the server on a thread
    // of its own. So the steps that are measured follow kWarmUp steps that took the final path. On
    // a busy machine a payload may take another one later, too; then all are made again.
    uint64_t on_path = 0;
    while (!is_measured) {
      const bool measured = is_warm;
      const int steps = measured ? kSteps : kWarmUp;
      for (int step = 1; step <= steps; ++step) {
        memory[0] = static_cast<float>(step);
        ASSERT_OK(push(**group, memory));
        ASSERT_OK((*group)->WaitStep(kTimeout));
      }
      // Between the two barriers no worker has a message in flight.
      ASSERT_OK(client.Barrier("all have it", kTimeout));
      if (rank == 0) {
        const uint64_t previous = on_path;
        on_path = BytesOnPath(cluster.server(0), shared_memory);
        (measured ? after : before) = CountedMemory();
        const bool took_path = on_path - previous >= steps * kMembers * kBytes;
        const bool is_late = absl::Now() > deadline;
        EXPECT_TRUE(took_path || !measured || !is_late);
        is_measured = measured && (took_path || is_late);
        is_warm = took_path || is_late;
      }
      ASSERT_OK(client.Barrier("counted", kTimeout));
    }
    ASSERT_OK((*group)->End(kTimeout));
    ASSERT_OK(client.Leave(kTimeout));
  });
  const MemoryCounts counts = after - before;
  return {static_cast<double>(counts.bytes_copied) / kSteps / (kMembers * kBytes),
          static_cast<double>(counts.allocations) / kSteps / (kMembers * kChunks),
          static_cast<double>(counts.large_allocations) / kSteps / (kMembers * kChunks)};
}

absl::Status PushInPlace(Group& group, float* memory) {
  return group.Push(TensorId{0}, memory, kBytes, Group::InPlace());
}
absl::Status PushToBuffer(Group& group, float* memory) {
  return group.Push(TensorId{0}, memory, kBytes, memory + kBytes / sizeof(float));
}

// In each chunk, a tensor that nearly fills it and one of kSmallBytes.
constexpr size_t kSmallBytes = 64;
std::vector<TensorSpec> LargeAndSmallTensors() {
  std::vector<TensorSpec> tensors;
  for (size_t c = 0; c < kChunks; ++c) {
    tensors.push_back({absl::StrCat("large", c),
                       DType::kF32,
                       {int64_t{(kChunkBytes - kSmallBytes) / sizeof(float)}}});
    tensors.push_back(
        {absl::StrCat("small", c), DType::kF32, {int64_t{kSmallBytes / sizeof(float)}}});
  }
  return tensors;
}
// The small tensors are not in `memory`.
absl::Status PushLargeAndSmall(Group& group, float* memory) {
  static const float kSmall[kSmallBytes / sizeof(float)] = {};
  for (uint32_t t = 0; t < 2 * kChunks; ++t) {
    float* const values = memory + t / 2 * (kChunkBytes / sizeof(float));
    float* const result = values + kBytes / sizeof(float);
    if (t % 2 == 0) {
      SYNCGRADS_RETURN_IF_ERROR(group.Push(TensorId{t}, values, kChunkBytes - kSmallBytes, result));
    } else {
      SYNCGRADS_RETURN_IF_ERROR(group.Push(TensorId{t}, kSmall, kSmallBytes,
                                           result + (kChunkBytes - kSmallBytes) / sizeof(float)));
    }
  }
  return absl::OkStatus();
}

class CostTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::kCountsMemory) GTEST_SKIP() << "a sanitizer has malloc and memcpy";
  }
};

// Measured: 36 to 41 allocations if descriptors of shared memory are sent over the stream, and 47
// to 53 if payloads are. Nearly all of them are gRPC's. Their number depends on how the kernel
// splits the received bytes, so the limits leave some room.
constexpr double kDescribed = 60;
constexpr double kStreamed = 75;

void ExpectCosts(const StepCosts& costs, double copied, double allocations,
                 double large_allocations) {
  EXPECT_NEAR(costs.copied, copied, 0.01);
  EXPECT_LE(costs.allocations, allocations);
  EXPECT_LE(costs.large_allocations, large_allocations);
}

TEST_F(CostTest, SharedGradientsAndResultsInPlaceAreNotCopied) {
  ExpectCosts(Measure(true, true, PushInPlace), 0, kDescribed, 0.1);
}
TEST_F(CostTest, SharedGradientsCostTheCopyOfTheResult) {
  ExpectCosts(Measure(true, true, PushToBuffer), 1, kDescribed, 0.1);
}
TEST_F(CostTest, OrdinaryGradientsCostOneCopyMore) {
  ExpectCosts(Measure(true, false, PushToBuffer), 2, kDescribed, 0.1);
}
TEST_F(CostTest, OrdinaryGradientsBesideSharedOnesAreCopiedAlone) {
  ExpectCosts(Measure(true, true, PushLargeAndSmall, LargeAndSmallTensors()), 1, kDescribed, 0.1);
}
TEST_F(CostTest, AStreamCostsTheCopyOfTheResult) {
  // The large allocations are gRPC's receive buffers: about two for each chunk in each direction.
  ExpectCosts(Measure(false, false, PushToBuffer), 1, kStreamed, 6);
}
// The copy is made only if the elements are not aligned in the received message. That depends on
// the length of the header before them.
TEST_F(CostTest, AStreamInPlaceCostsNoMoreThanOneCopy) {
  const StepCosts costs = Measure(false, false, PushInPlace);
  EXPECT_LE(costs.copied, 1.01);
  EXPECT_LE(costs.allocations, kStreamed);
  EXPECT_LE(costs.large_allocations, 7);
}

}  // namespace
}  // namespace syncgrads
