// Emulated CUDA devices read results in the memory of servers on the same host, and train the same
// model as with results that came through sockets.

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "tests/testing/cluster.h"
#include "tests/worker/nn/cuda/emulation/emulation.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/job/job_file.h"
#include "worker/nn/cuda/cuda_accelerators.h"
#include "worker/run/operations.h"
#include "worker/team/client_team.h"
#include "worker/train/compute.h"

namespace syncgrads {
namespace {

using emulation::Schedule;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr uint32_t kWorkers = 2;

// Returns the file of the model that two workers train with two servers.
std::string Train(const std::string& more, bool shared_memory, Schedule schedule) {
  emulation::Options emulated;
  emulated.schedule = schedule;
  emulation::Configure(emulated);
  // Servers share results of this size; those of smaller models are sent.
  const auto job = ParseJobFile(absl::StrCat(R"(
      name: "results" seed: 7 batch_size: 16 epochs: 4 threads: 1 chunk_bytes: 65536
      data { table { path: "iris.csv" } target: "class" }
      model {
        layers { dense { outputs: 100 activation: TANH } }
        layers { dense { outputs: 100 activation: TANH } }
        layers { dense { outputs: 100 activation: TANH } }
        layers { dense { outputs: 3 } }
      }
      loss { logit_cross_entropy {} }
      optimizer { adam { learning_rate: 0.01 } })",
                                             more),
                                "examples/iris/results.job");
  SYNCGRADS_EXPECT_OK(job);
  if (!job.ok()) return "";
  server::ServerOptions options;
  options.shared_memory = shared_memory;
  testing::Cluster cluster(2, options);
  const TemporaryDirectory directory;
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kWorkers; ++i) {
    threads.emplace_back([&, i] {
      ClientOptions client_options;
      client_options.coordinator = cluster.coordinator();
      client_options.job = job->file.name();
      client_options.name = absl::StrCat("worker-", i);
      client_options.world_size = kWorkers;
      Client client(client_options);
      SYNCGRADS_ASSERT_OK(client.Join(kTimeout));
      ClientTeam team(client, kTimeout);
      NoProgress none;
      TrainerOptions trainer;
      trainer.step_timeout = kTimeout;
      trainer.progress = &none;
      const auto choice = ChooseDevice("cuda", "f32", i, CudaAccelerators());
      SYNCGRADS_ASSERT_OK(choice);
      trainer.device = *choice;
      const auto result =
          RunTraining(*job, team, trainer, i == 0 ? absl::StrCat(directory.path(), "/model") : "");
      SYNCGRADS_ASSERT_OK(result);
      EXPECT_TRUE(result->replicas.identical()) << ToString(result->replicas);
      SYNCGRADS_EXPECT_OK(client.Leave(kTimeout));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::ifstream model(absl::StrCat(directory.path(), "/model"), std::ios::binary);
  return {std::istreambuf_iterator<char>(model), {}};
}

class EmulatedResultsTest : public ::testing::TestWithParam<Schedule> {};

INSTANTIATE_TEST_SUITE_P(Schedules, EmulatedResultsTest,
                         ::testing::Values(Schedule::kRandom, Schedule::kOldestStreamFirst,
                                           Schedule::kNewestStreamFirst));

TEST_P(EmulatedResultsTest, AreReadWhereTheServersHaveThem) {
  // Steps that overlap, and steps that do not.
  for (const char* const more : {"", "check_replicas_every: 1"}) {
    SCOPED_TRACE(more);
    const std::string copied = Train(more, /*shared_memory=*/false, GetParam());
    EXPECT_EQ(emulation::PinnedForReading(), 0u);
    const std::string shared = Train(more, /*shared_memory=*/true, GetParam());
    // Two servers' memory for two devices.
    EXPECT_GE(emulation::PinnedForReading(), 2 * 2 * size_t{60000});
    EXPECT_FALSE(shared.empty());
    EXPECT_EQ(shared, copied);
  }
}

}  // namespace
}  // namespace syncgrads
