// Training from several initialisations, with the real service.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "tests/testing/cluster.h"
#include "tests/worker/testing/status.h"
#include "worker/run/operations.h"
#include "worker/team/client_team.h"

namespace syncgrads {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(2);
constexpr uint32_t kWorkers = 2;

struct Ended {
  TrainingResult result;
  std::vector<std::string> notes;
};

std::vector<Ended> TrainIris(uint32_t restarts, v1::OptimizerPlacement place) {
  auto job = LoadJobFile("examples/iris/iris.job");
  SYNCGRADS_EXPECT_OK(job);
  job->file.set_random_restarts(restarts);
  job->file.set_optimizer_placement(place);
  job->file.set_epochs(4);
  testing::Cluster cluster(2);
  std::vector<Ended> ended(kWorkers);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    threads.emplace_back([&, rank] {
      ClientOptions options;
      options.coordinator = cluster.coordinator();
      options.job = job->file.name();
      options.rank = rank;
      options.world_size = kWorkers;
      Client client(options);
      SYNCGRADS_ASSERT_OK(client.Join(kTimeout));
      ClientTeam team(client, kTimeout);
      NoProgress progress;
      TrainerOptions trainer;
      trainer.progress = &progress;
      trainer.note = [&](const std::string& line) { ended[rank].notes.push_back(line); };
      const auto result = RunTraining(*job, team, trainer, "");
      SYNCGRADS_ASSERT_OK(result);
      ended[rank].result = *result;
      SYNCGRADS_EXPECT_OK(client.Leave(kTimeout));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ended;
}

// Finds the losses in notes such as "initialisation 1 of 3: held out: loss 0.5, accuracy ...".
std::vector<double> LossesIn(const std::vector<std::string>& notes) {
  std::vector<double> losses;
  for (const std::string& note : notes) {
    const size_t at = note.find("loss ");
    double loss = 0;
    if (at == std::string::npos) continue;
    EXPECT_TRUE(absl::SimpleAtod(note.substr(at + 5, note.find(',', at) - at - 5), &loss)) << note;
    losses.push_back(loss);
  }
  return losses;
}

TEST(RestartsTest, TheBestOfAllInitialisationsIsKeptByAllWorkers) {
  const std::vector<Ended> once = TrainIris(0, v1::WORKERS);
  EXPECT_FALSE(once[0].result.initialisation.has_value());
  for (const v1::OptimizerPlacement place : {v1::WORKERS, v1::SERVERS}) {
    const std::vector<Ended> ended = TrainIris(3, place);
    const std::vector<double> losses = LossesIn(ended[0].notes);
    ASSERT_EQ(losses.size(), 4u) << ::testing::PrintToString(ended[0].notes);
    // The initialisations differ. The first one is that of a job without restarts.
    EXPECT_EQ(std::set<double>(losses.begin(), losses.end()).size(), 4u);
    EXPECT_NEAR(losses[0], once[0].result.held_out->loss, 1e-4);
    const auto least = std::min_element(losses.begin(), losses.end());
    for (const Ended& one : ended) {
      EXPECT_EQ(one.result.initialisation, static_cast<uint32_t>(least - losses.begin()));
      EXPECT_NEAR(one.result.held_out->loss, *least, 1e-4);
      EXPECT_TRUE(one.result.replicas.identical()) << ToString(one.result.replicas);
    }
    EXPECT_TRUE(ended[1].notes.empty());
  }
}

}  // namespace
}  // namespace syncgrads
