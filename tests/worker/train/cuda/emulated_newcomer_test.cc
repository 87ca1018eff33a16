// A worker joins a training run on emulated CUDA devices, with the real service. It gets the state
// that the other workers' optimizers have on their devices.

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "tests/testing/cluster.h"
#include "tests/worker/nn/cuda/emulation/emulation.h"
#include "tests/worker/testing/status.h"
#include "worker/job/job_file.h"
#include "worker/nn/cuda/cuda_accelerators.h"
#include "worker/run/operations.h"
#include "worker/team/client_team.h"
#include "worker/train/compute.h"

namespace syncgrads {
namespace {

using emulation::Schedule;

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr uint32_t kWorkers = 3;

class EmulatedNewcomerTest : public ::testing::TestWithParam<Schedule> {
 protected:
  EmulatedNewcomerTest() {
    emulation::Options options;
    options.schedule = GetParam();
    emulation::Configure(options);
  }
};

INSTANTIATE_TEST_SUITE_P(Schedules, EmulatedNewcomerTest,
                         ::testing::Values(Schedule::kRandom, Schedule::kOldestStreamFirst,
                                           Schedule::kNewestStreamFirst));

// Lets the newcomer start after step 3, and waits until it has joined.
class Welcome : public NoProgress {
 public:
  Welcome(absl::Notification& some_steps, absl::Notification& joined)
      : some_steps_(some_steps), joined_(joined) {}
  void Stepped(uint64_t step, std::optional<double>) override {
    if (step != 3) return;
    some_steps_.Notify();
    EXPECT_TRUE(joined_.WaitForNotificationWithTimeout(kTimeout));
  }

 private:
  absl::Notification& some_steps_;
  absl::Notification& joined_;
};

TEST_P(EmulatedNewcomerTest, AllEndEqual) {
  const auto job = ParseJobFile(R"(
      name: "elastic" seed: 7 batch_size: 8 epochs: 4 threads: 1
      elastic { max_workers: 3 }
      data { table { path: "iris.csv" } target: "class" validation_every: 5 mode: DYNAMIC }
      model {
        layers { dense { outputs: 8 activation: TANH } }
        layers { dense { outputs: 3 } }
      }
      loss { logit_cross_entropy {} }
      optimizer { adam { learning_rate: 0.01 } })",
                                "examples/iris/elastic.job");
  SYNCGRADS_ASSERT_OK(job);
  const auto data = LoadWholeDataSet(*job, kWorkers, /*rank=*/0);
  SYNCGRADS_ASSERT_OK(data);
  testing::Cluster cluster(2);
  absl::Notification some_steps, joined;
  std::vector<TrainingResult> results(kWorkers);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kWorkers; ++i) {
    threads.emplace_back([&, i] {
      const bool is_late = i + 1 == kWorkers;
      if (is_late) {
        ASSERT_TRUE(some_steps.WaitForNotificationWithTimeout(kTimeout));
      }
      ClientOptions options;
      options.coordinator = cluster.coordinator();
      options.job = job->file.name();
      options.name = absl::StrCat("worker-", i);
      options.world_size = kWorkers - 1;
      options.max_workers = kWorkers;
      options.min_workers = 1;
      Client client(options);
      SYNCGRADS_ASSERT_OK(client.Join(kTimeout));
      EXPECT_EQ(client.is_newcomer(), is_late);
      if (is_late) joined.Notify();
      ClientTeam team(client, kTimeout);
      NoProgress none;
      Welcome welcome(some_steps, joined);
      TrainerOptions trainer;
      trainer.step_timeout = kTimeout;
      trainer.progress = i == 0 ? static_cast<Progress*>(&welcome) : &none;
      trainer.owners = kWorkers;
      const auto choice = ChooseDevice("cuda", "f32", i, CudaAccelerators());
      SYNCGRADS_ASSERT_OK(choice);
      trainer.device = *choice;
      const auto result = RunElasticTraining(*job, *data, team, trainer, "");
      SYNCGRADS_ASSERT_OK(result);
      results[i] = *result;
      SYNCGRADS_EXPECT_OK(client.Leave(kTimeout));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const TrainingResult& result : results) {
    EXPECT_EQ(result.replicas.replicas, kWorkers);
    EXPECT_TRUE(result.replicas.identical()) << ToString(result.replicas);
    EXPECT_EQ(result.steps, results[0].steps);
  }
}

}  // namespace
}  // namespace syncgrads
