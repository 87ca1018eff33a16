// Payloads through shared memory, through a real server in this process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "tests/client/said_paths.h"
#include "tests/testing/cluster.h"

namespace syncgrads {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(20);
constexpr size_t kElements = 700'000;  // three chunks, the last one short

std::unique_ptr<Client> NewClient(const testing::Cluster& cluster, uint32_t rank, uint32_t world,
                                  bool shared_memory, testing::SaidPaths& paths) {
  ClientOptions options;
  options.coordinator = cluster.coordinator();
  options.job = "shared";
  options.rank = rank;
  options.world_size = world;
  options.shared_memory = shared_memory;
  options.on_path = paths.Recorder();
  return std::make_unique<Client>(options);
}

GroupSpec Spec() {
  GroupSpec spec;
  spec.name = "model";
  spec.tensors = {{"small", DType::kF32, {3}}, {"big", DType::kF32, {int64_t{kElements}}}};
  return spec;
}

// Trains three steps; `own` says whether gradients lie in memory of the library.
// Returns the last step's result.
std::vector<float> Run(Client& client, bool own) {
  EXPECT_TRUE(client.Join(kTimeout).ok());
  absl::StatusOr<Group*> group = client.Register(Spec(), kTimeout);
  EXPECT_TRUE(group.ok()) << group.status();
  std::vector<float> ordinary(3 + kElements);
  float* gradients = ordinary.data();
  if (own) {
    absl::StatusOr<void*> memory = client.AllocateGradients(ordinary.size() * sizeof(float));
    EXPECT_TRUE(memory.ok()) << memory.status();
    gradients = static_cast<float*>(*memory);
  }
  std::vector<float> results(3 + kElements);
  for (int step = 1; step <= 3; ++step) {
    for (size_t i = 0; i < ordinary.size(); ++i) {
      gradients[i] = static_cast<float>(i % 1000) * step + client.rank();
    }
    EXPECT_TRUE((*group)->Push(TensorId{0}, gradients, 12, results.data()).ok());
    EXPECT_TRUE(
        (*group)
            ->Push(TensorId{1}, gradients + 3, kElements * sizeof(float), results.data() + 3)
            .ok());
    const auto waited = (*group)->WaitStep(kTimeout);
    EXPECT_TRUE(waited.ok()) << waited.status();
  }
  EXPECT_TRUE((*group)->End(kTimeout).ok());
  EXPECT_TRUE(client.Leave(kTimeout).ok());
  return results;
}

// Rank 0, 1 and 2 as `kinds` says: which share memory, and which of them push
// from memory of the library.
struct Kind {
  bool shared_memory;
  bool own;
};

void ExpectMeans(const std::vector<Kind>& kinds, uint32_t servers,
                 server::ServerOptions options = {}, testing::SaidPaths* recorded = nullptr) {
  testing::Cluster cluster(servers, options);
  testing::SaidPaths paths;
  const uint32_t world = static_cast<uint32_t>(kinds.size());
  std::vector<std::vector<float>> results(world);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      auto client = NewClient(cluster, rank, world, kinds[rank].shared_memory,
                              recorded != nullptr ? *recorded : paths);
      results[rank] = Run(*client, kinds[rank].own);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const float mean_rank = static_cast<float>(world - 1) / 2;
  for (uint32_t rank = 0; rank < world; ++rank) {
    for (size_t i = 0; i < results[rank].size(); ++i) {
      ASSERT_EQ(results[rank][i], static_cast<float>(i % 1000) * 3 + mean_rank)
          << "rank " << rank << ", element " << i;
    }
  }
}

TEST(SharedMemoryTest, GradientsInMemoryOfTheLibraryAreAveraged) {
  testing::SaidPaths paths;
  ExpectMeans({{true, true}, {true, true}, {true, true}}, 1, {}, &paths);
  EXPECT_THAT(paths.lines(), ::testing::Each(::testing::HasSubstr("shared memory")));
  EXPECT_EQ(paths.lines().size(), 3u);
}

TEST(SharedMemoryTest, OrdinaryGradientsAreAveragedToo) {
  ExpectMeans({{true, false}, {true, false}, {true, false}}, 1);
}

TEST(SharedMemoryTest, MembersThatShareAndThatDoNotGetTheSame) {
  ExpectMeans({{true, true}, {false, false}, {true, false}}, 2);
}

TEST(SharedMemoryTest, AServerThatSharesNothingIsSentEverything) {
  server::ServerOptions options;
  options.shared_memory = false;
  options.unix_socket = false;
  testing::SaidPaths paths;
  ExpectMeans({{true, true}, {true, false}, {true, true}}, 1, options, &paths);
  EXPECT_THAT(paths.lines(),
              ::testing::Each("server 0: payloads go over TCP: the server shares no memory"));
  EXPECT_EQ(paths.lines().size(), 3u);
}

TEST(SharedMemoryTest, AllocationBeforeJoiningSaysWhatToCall) {
  testing::Cluster cluster;
  testing::SaidPaths paths;
  auto client = NewClient(cluster, 0, 1, true, paths);
  const absl::Status status = client->AllocateGradients(100).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_TRUE(absl::StrContains(status.message(), "Client::Join")) << status;
}

}  // namespace
}  // namespace syncgrads
