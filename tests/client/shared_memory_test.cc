// Payloads through shared memory, with a real server in this process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "tests/client/reported_paths.h"
#include "tests/testing/cluster.h"

namespace syncgrads {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(2);
constexpr size_t kElements = 700'000;  // three chunks; the last one is shorter

std::unique_ptr<Client> NewClient(const testing::Cluster& cluster, uint32_t rank, uint32_t world,
                                  bool shared_memory, testing::ReportedPaths& paths) {
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

// Joins and trains three steps. If `own`, the gradients are in memory that the library has
// allocated. Calls `before_the_end` between the last step and the end. Returns the result of the
// last step.
std::vector<float> Run(Client& client, bool own, const std::function<void()>& before_the_end) {
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
  before_the_end();
  EXPECT_TRUE((*group)->End(kTimeout).ok());
  EXPECT_TRUE(client.Leave(kTimeout).ok());
  return results;
}

TEST(SharedMemoryTest, AClientIsAbandonedByTwoThreadsAtOnce) {
  const testing::Cluster cluster(2);
  for (int i = 0; i < 20; ++i) {
    ClientOptions options;
    options.coordinator = cluster.coordinator();
    options.job = absl::StrCat("abandoned ", i);
    Client client(options);
    ASSERT_TRUE(client.Join(kTimeout).ok());
    ASSERT_TRUE(client.Register(Spec(), kTimeout).ok());
    std::thread other([&client] { client.Abandon(); });
    client.Abandon();
    other.join();
    EXPECT_EQ(client.Join(kTimeout).code(), absl::StatusCode::kFailedPrecondition);
  }
}

// How a worker shares memory, and whether it pushes from memory that the library has allocated.
struct Kind {
  bool shared_memory;
  bool own;
};

void ExpectMeans(const std::vector<Kind>& kinds, uint32_t servers,
                 server::ServerOptions options = {}, testing::ReportedPaths* recorded = nullptr) {
  testing::Cluster cluster(servers, options);
  testing::ReportedPaths unrecorded;
  testing::ReportedPaths& paths = recorded != nullptr ? *recorded : unrecorded;
  const uint32_t world = static_cast<uint32_t>(kinds.size());
  std::vector<std::vector<float>> results(world);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      auto client = NewClient(cluster, rank, world, kinds[rank].shared_memory, paths);
      // Memory may be shared only after some steps. Then the path is reported only after them.
      results[rank] = Run(*client, kinds[rank].own, [&] {
        EXPECT_TRUE(paths.AwaitCount(world * servers, absl::Now() + kTimeout));
      });
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
  testing::ReportedPaths paths;
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
  testing::ReportedPaths paths;
  ExpectMeans({{true, true}, {true, false}, {true, true}}, 1, options, &paths);
  EXPECT_THAT(paths.lines(),
              ::testing::Each(
                  "server 0: payloads go over TCP: shared memory is not available on the server"));
  EXPECT_EQ(paths.lines().size(), 3u);
}

TEST(SharedMemoryTest, AllocationBeforeJoiningSaysWhatToCall) {
  testing::Cluster cluster;
  testing::ReportedPaths paths;
  auto client = NewClient(cluster, 0, 1, true, paths);
  const absl::Status status = client->AllocateGradients(100).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_TRUE(absl::StrContains(status.message(), "Client::Join")) << status;
}

}  // namespace
}  // namespace syncgrads
