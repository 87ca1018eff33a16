// Autotuning with real servers: all workers choose the same chunk size, and the results are correct
// while settings are tried. The tests do not check which setting is the fastest.

#include <string>
#include <vector>

#include "client/tuning/step_tuner.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/workers.h"
#include "tests/testing/cluster.h"

namespace syncgrads::testing {
namespace {

using ::testing::_;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kElements = 200000;
constexpr uint32_t kWorkers = 2;

struct Tuned {
  std::unique_ptr<Client> client;
  std::vector<int> used;  // the values of the program's own setting, in the order of their use
  std::vector<std::string> found;
  Group* group = nullptr;
};

// Starts the job and registers `spec` on all workers.
void Start(Cluster& cluster, const GroupSpec& spec, std::vector<Tuned>& workers) {
  workers.resize(kWorkers);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    threads.emplace_back([&cluster, &spec, &worker = workers[rank], rank] {
      ClientOptions options;
      options.coordinator = cluster.coordinator();
      options.job = "job";
      options.token = "secret";
      options.rank = rank;
      options.world_size = kWorkers;
      options.shared_memory = false;
      options.autotune = true;
      options.tuned_settings = {
          {"own", "", {5, 6}, [&worker](int value) { worker.used.push_back(value); }}};
      options.on_tuned = [&worker](const std::string& line) { worker.found.push_back(line); };
      worker.client = std::make_unique<Client>(options);
      ASSERT_OK(worker.client->Join(kTimeout));
      auto group = worker.client->Register(spec, 3 * kTimeout);
      ASSERT_OK(group);
      worker.group = *group;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(AutotuneTest, AllWorkersAgreeOnASizeAndTrainOnWithAnySettings) {
  Cluster cluster(2);
  const GroupSpec spec = {.name = "model", .tensors = {{"a", DType::kF32, {kElements}}}};
  std::vector<Tuned> workers;
  Start(cluster, spec, workers);
  for (const Tuned& worker : workers) {
    ASSERT_NE(worker.group, nullptr);
    ASSERT_EQ(worker.found.size(), 1u);
    EXPECT_EQ(worker.found[0], workers[0].found[0]);
    EXPECT_THAT(worker.found[0], HasSubstr("chunk size: a step in chunks of "));
  }
  EXPECT_EQ(workers[0].group->spec().chunk_bytes, workers[1].group->spec().chunk_bytes);
  EXPECT_GE(workers[0].group->spec().chunk_bytes, 64u << 10);

  // There are eight values to try: three numbers of connections, three windows, and two values of
  // the setting "own".
  constexpr int kSteps = 8 * client::StepTuner::kTurns * client::StepTuner::kStepsOfTurn + 5;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    threads.emplace_back([&worker = workers[rank], rank] {
      std::vector<float> values(kElements);
      for (int step = 1; step <= kSteps; ++step) {
        std::fill(values.begin(), values.end(), static_cast<float>(step + 2 * rank));
        ASSERT_OK(worker.group->Push(TensorId{0}, values.data(), BytesOf(values), values.data()));
        ASSERT_OK(worker.group->WaitStep(kTimeout));
        ASSERT_EQ(values.front(), static_cast<float>(step + 1));
        ASSERT_EQ(values.back(), static_cast<float>(step + 1));
      }
      ASSERT_EQ(worker.found.size(), 4u);
      EXPECT_THAT(worker.found[1], HasSubstr("connections: a step with "));
      EXPECT_THAT(worker.found[2], HasSubstr("send window: a step with "));
      EXPECT_THAT(worker.found[3], HasSubstr("own: a step with "));
      EXPECT_THAT(worker.used, ElementsAre(6, 5, 6, 5, 6, _));
      EXPECT_OK(worker.client->Leave(kTimeout));
    });
  }
  for (std::thread& thread : threads) thread.join();
  // The trial job has been closed on the server.
  EXPECT_NE(cluster.journal().WaitForLine({"job (autotune model 1)", "closed"}, kTimeout), "");
}

TEST(AutotuneTest, TriesAGroupWithCodecsAndParametersOnTheServers) {
  Cluster cluster;
  GroupSpec spec = {.name = "model",
                    .tensors = {{"a", DType::kF32, {kElements}}, {"b", DType::kF32, {3}}}};
  spec.rule = Sgd{.learning_rate = 1};
  spec.compression = {{{Codec::kTopK, 0.01}, {}}, {}};
  std::vector<Tuned> workers;
  Start(cluster, spec, workers);
  for (const Tuned& worker : workers) {
    ASSERT_NE(worker.group, nullptr);
    EXPECT_EQ(worker.group->spec().compression, spec.compression);
    EXPECT_EQ(worker.group->spec().chunk_bytes, workers[0].group->spec().chunk_bytes);
  }
}

TEST(AutotuneTest, LeavesASizeThatIsGivenAsItIs) {
  Cluster cluster;
  const GroupSpec spec = {
      .name = "model", .tensors = {{"a", DType::kF32, {100}}}, .chunk_bytes = 128};
  std::vector<Tuned> workers;
  Start(cluster, spec, workers);
  for (const Tuned& worker : workers) {
    ASSERT_NE(worker.group, nullptr);
    EXPECT_EQ(worker.group->spec().chunk_bytes, 128u);
    EXPECT_TRUE(worker.found.empty());
  }
}

}  // namespace
}  // namespace syncgrads::testing
