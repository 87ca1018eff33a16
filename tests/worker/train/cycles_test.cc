// Steps that workers make alone: local steps, and competitions (best_of).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/worker/testing/fake_team.h"
#include "tests/worker/testing/forwarding_team.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/training.h"
#include "worker/job/job_file.h"
#include "worker/run/operations.h"

namespace syncgrads {
namespace {

Job Iris() {
  auto job = LoadJobFile("examples/iris/iris.job");
  EXPECT_TRUE(job.ok()) << job.status();
  job->file.set_dtype(v1::F64);
  job->file.set_epochs(5);
  return *job;
}

std::vector<TrainingResult> RunAll(FakeJob& workers, const Job& job, uint32_t world_size) {
  std::vector<TrainingResult> results(world_size);
  workers.Run([&](Team& team) {
    NoProgress progress;
    TrainerOptions options;
    options.progress = &progress;
    const auto result = RunTraining(job, team, options, "");
    SYNCGRADS_ASSERT_OK(result);
    results[team.rank()] = *result;
  });
  return results;
}

// `rate_factor` is the job's learning rate factor from round 2 on.
std::vector<double> ParametersOf(const Job& job, uint32_t world_size, double rate_factor = 1) {
  FakeJob workers(world_size);
  workers.SetRateFactor(2, rate_factor);
  Trained trained(world_size);
  workers.Run([&](Team& team) { TrainOne(job, team, nullptr, trained); });
  for (const absl::Status& status : trained.statuses) EXPECT_TRUE(status.ok()) << status;
  for (const auto& parameters : trained.parameters) EXPECT_EQ(parameters, trained.parameters[0]);
  return trained.parameters[0];
}

// If each worker makes one step of gradient descent from the same start, the average of the models
// is one step with the average gradient.
TEST(LocalStepsTest, OneLocalStepIsAStepTogether) {
  Job together = Iris();
  together.file.mutable_optimizer()->mutable_sgd()->set_learning_rate(0.05);
  together.file.set_batch_size(7);  // the last batch is smaller
  together.file.set_weight_by_samples(true);
  Job alone = together;
  alone.file.mutable_consistency()->mutable_local_steps()->set_steps(1);
  alone.file.mutable_consistency()->mutable_local_steps()->mutable_average();
  const std::vector<double> expected = ParametersOf(together, 3);
  EXPECT_LT(LargestDifference(ParametersOf(alone, 3), expected), 1e-12);
}

// Like the step together, in which each row counts once, the average counts the changes by rows.
TEST(LocalStepsTest, ChangesAreWeightedByTheRowsBehindThem) {
  Job together = Iris();
  // The last worker has fewer of the 150 rows than the others.
  together.file.mutable_data()->set_split(v1::DataSpec::KEEP_REMAINDER);
  together.file.mutable_data()->set_shards(4);
  together.file.mutable_optimizer()->mutable_sgd()->set_learning_rate(0.05);
  together.file.set_batch_size(100);
  Job alone = together;
  together.file.set_weight_by_samples(true);
  alone.file.mutable_consistency()->mutable_local_steps()->set_steps(1);
  alone.file.mutable_consistency()->mutable_local_steps()->mutable_average();
  const std::vector<double> expected = ParametersOf(together, 4);
  EXPECT_LT(LargestDifference(ParametersOf(alone, 4), expected), 1e-12);
  together.file.set_weight_by_samples(false);
  EXPECT_GT(LargestDifference(ParametersOf(together, 4), expected), 1e-6)
      << "all workers have the same number of rows";
}

TEST(LocalStepsTest, OneWorkerWithAPlainAverageTrainsAsIfItWereAlone) {
  Job together = Iris();
  Job alone = together;
  alone.file.mutable_consistency()->mutable_local_steps()->set_steps(4);
  alone.file.mutable_consistency()->mutable_local_steps()->mutable_average();
  EXPECT_LT(LargestDifference(ParametersOf(alone, 1), ParametersOf(together, 1)), 1e-12);
}

TEST(LocalStepsTest, ACycleHasTheLearningRateFactorOfTheRoundBefore) {
  Job job = Iris();
  job.file.mutable_consistency()->mutable_local_steps()->set_steps(4);
  Job scheduled = job;
  // The first two cycles have 4 steps each, which count from 0.
  scheduled.file.mutable_schedule()->mutable_step()->add_milestones(8);
  scheduled.file.mutable_schedule()->mutable_step()->set_factor(0.1);
  const std::vector<double> expected = ParametersOf(scheduled, 2);
  EXPECT_NE(ParametersOf(job, 2), expected);
  EXPECT_EQ(ParametersOf(job, 2, 0.1), expected);
}

TEST(LocalStepsTest, ACycleIsARoundAndTheLastMayBeShorter) {
  Job job = Iris();
  job.file.mutable_consistency()->mutable_local_steps()->set_steps(4);
  FakeJob workers(3);
  for (const TrainingResult& result : RunAll(workers, job, 3)) {
    EXPECT_EQ(result.steps, 25u);
    EXPECT_EQ(result.rounds, 7u);
    EXPECT_TRUE(result.replicas.identical());
  }
}

TEST(LocalStepsTest, AGradientThatIsNotFiniteIsNeverApplied) {
  Job job = Iris();
  job.file.mutable_consistency()->mutable_local_steps()->set_steps(4);
  // The activations soon overflow.
  job.file.mutable_optimizer()->mutable_sgd()->set_learning_rate(1e30);
  FakeJob workers(1);
  workers.Run([&](Team& team) {
    NoProgress progress;
    TrainerOptions options;
    options.progress = &progress;
    const auto result = RunTraining(job, team, options, "");
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << result.status();
    EXPECT_NE(result.status().message().find("the norm of its gradient is"), std::string::npos)
        << result.status();
  });
}

// Records the losses that are compared. If `diverged` is set, the loss of this worker is NaN.
class Witness : public ForwardingTeam {
 public:
  Witness(Team& team, bool diverged) : ForwardingTeam(team), diverged_(diverged) {}

  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view name,
                                                  absl::string_view bytes) override {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    if (diverged_ && name == "best/loss") bytes = {reinterpret_cast<const char*>(&nan), 8};
    auto all = ForwardingTeam::Gather(name, bytes);
    if (name == "best/loss" && all.ok()) {
      std::vector<double>& losses = compared.emplace_back(all->size());
      for (size_t i = 0; i < all->size(); ++i) std::memcpy(&losses[i], (*all)[i].data(), 8);
    }
    return all;
  }

  // Indexed by cycle and rank.
  std::vector<std::vector<double>> compared;

 private:
  const bool diverged_;
};

// Records the learning rate of each step.
class Rates : public NoProgress {
 public:
  void Used(const StepUse& use) override { rates.push_back(use.learning_rate); }
  std::vector<double> rates;
};

class CompetitionTest : public ::testing::Test {
 protected:
  // Trains with three workers and returns the result of rank 0. The loss of the rank `diverged` is
  // NaN.
  TrainingResult Compete(const Job& job, std::optional<uint32_t> diverged = std::nullopt) {
    FakeJob workers(3);
    TrainingResult first;
    workers.Run([&](Team& team) {
      Witness witness(team, team.rank() == diverged);
      Rates progress;
      TrainerOptions options;
      options.progress = &progress;
      const auto result = RunTraining(job, witness, options, "");
      SYNCGRADS_ASSERT_OK(result);
      EXPECT_TRUE(result->replicas.identical());
      if (team.rank() != 0) return;
      first = *result;
      compared_ = witness.compared;
      rates_ = progress.rates;
    });
    return first;
  }
  static Job BestOf(uint32_t steps) {
    Job job = Iris();
    job.file.mutable_consistency()->mutable_best_of()->set_steps(steps);
    return job;
  }
  static double Lowest(const std::vector<double>& losses) {
    return *std::min_element(losses.begin(), losses.end());
  }

  std::vector<std::vector<double>> compared_;
  std::vector<double> rates_;
};

TEST_F(CompetitionTest, TheBestModelIsEverybodys) {
  const TrainingResult result = Compete(BestOf(1000));
  ASSERT_EQ(compared_.size(), 1u);
  ASSERT_EQ(compared_[0].size(), 3u);
  EXPECT_NE(compared_[0][0], compared_[0][1]) << "each on its own shard";
  ASSERT_TRUE(result.held_out.has_value());
  EXPECT_EQ(result.held_out->rows, 30u);
  EXPECT_NEAR(result.held_out->loss, Lowest(compared_[0]), 1e-12);
  EXPECT_EQ(result.rounds, 1u);
}

TEST_F(CompetitionTest, AModelThatHasDivergedIsNeverTheBest) {
  for (const uint32_t diverged : {0, 1, 2}) {
    const TrainingResult result = Compete(BestOf(1000), diverged);
    ASSERT_EQ(compared_.size(), 1u);
    EXPECT_TRUE(std::isnan(compared_[0][diverged]));
    compared_[0].erase(compared_[0].begin() + diverged);
    EXPECT_NEAR(result.held_out->loss, Lowest(compared_[0]), 1e-12) << diverged;
  }
}

TEST_F(CompetitionTest, ComparesAfterEveryCycle) {
  const TrainingResult result = Compete(BestOf(10));
  EXPECT_EQ(result.steps, 25u);
  EXPECT_EQ(result.rounds, 3u);
  EXPECT_EQ(compared_.size(), 3u);
  EXPECT_NEAR(result.held_out->loss, Lowest(compared_[2]), 1e-12);
}

TEST_F(CompetitionTest, TheLearningRateFallsByItsFactor) {
  Job job = BestOf(5);
  job.file.mutable_consistency()->mutable_best_of()->set_factor_every(2);
  job.file.mutable_consistency()->mutable_best_of()->set_factor(1e-300);
  Compete(job);
  ASSERT_EQ(compared_.size(), 5u);
  EXPECT_NE(compared_[1], compared_[0]);
  // The learning rate is now nearly 0, so all models stay equal to the best one.
  EXPECT_EQ(compared_[2], std::vector<double>(3, Lowest(compared_[1])));
  EXPECT_EQ(compared_[4], compared_[2]);
}

TEST_F(CompetitionTest, TheFactorIsAppliedAgainEachTime) {
  Job job = BestOf(5);
  job.file.mutable_consistency()->mutable_best_of()->set_factor_every(2);
  job.file.mutable_consistency()->mutable_best_of()->set_factor(0.5);
  job.file.mutable_optimizer()->mutable_adam()->set_learning_rate(0.008);
  Compete(job);
  std::vector<double> expected(10, 0.008);
  expected.resize(20, 0.004);
  expected.resize(25, 0.002);
  EXPECT_EQ(rates_, expected);
}

}  // namespace
}  // namespace syncgrads
