// Training without the service: workers are threads, and a fake does the servers' part.

#include "worker/trainer/trainer.h"

#include <gtest/gtest.h>

#include <functional>
#include <iostream>

#include "tests/worker/testing/fake_team.h"
#include "tests/worker/testing/forwarding_team.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "tests/worker/testing/training.h"
#include "worker/job/job_file.h"

namespace syncgrads {
namespace {

Job Iris() {
  auto job = LoadJobFile("examples/iris/iris.job");
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

Trained TrainIn(FakeJob& workers, const Job& job, uint32_t world_size,
                const std::function<bool(uint64_t)>& should_stop = nullptr) {
  Trained trained(world_size);
  workers.Run([&](Team& team) { TrainOne(job, team, should_stop, trained); });
  return trained;
}

Trained TrainAll(const Job& job, uint32_t world_size) {
  FakeJob workers(world_size);
  Trained trained = TrainIn(workers, job, world_size);
  for (const absl::Status& status : trained.statuses) EXPECT_TRUE(status.ok()) << status;
  for (uint32_t rank = 1; rank < world_size; ++rank) {
    EXPECT_EQ(trained.parameters[rank], trained.parameters[0]) << "rank " << rank;
    EXPECT_EQ(trained.steps[rank], trained.steps[0]) << "rank " << rank;
  }
  EXPECT_TRUE(trained.replicas.identical()) << ToString(trained.replicas);
  return trained;
}

TEST(TrainerTest, IrisOnShardsSortedByClassLearnsToTellRowsItHasNotSeen) {
  const Trained trained = TrainAll(Iris(), 3);
  EXPECT_EQ(trained.steps[0], 250u);
  EXPECT_EQ(trained.held_out.rows, 30u);
  std::cout << "held out: " << ToString(trained.held_out) << "\n";
  EXPECT_GE(*trained.held_out.correct, 24u);
}

TEST(TrainerTest, TwoRunsWithTheSameSeedAreBitIdentical) {
  Job job = Iris();
  job.file.set_epochs(5);
  EXPECT_EQ(TrainAll(job, 3).parameters, TrainAll(job, 3).parameters);
  Job other = job;
  other.file.set_seed(job.file.seed() + 1);
  EXPECT_NE(TrainAll(job, 3).parameters, TrainAll(other, 3).parameters);
}

TEST(TrainerTest, ThreeWorkersEqualOneWorkerWithThreeTimesTheBatch) {
  for (const v1::OptimizerPlacement place : {v1::WORKERS, v1::SERVERS}) {
    Job job = Iris();
    job.file.set_optimizer_placement(place);
    job.file.set_dtype(v1::F64);
    Job whole = job;
    whole.file.set_batch_size(24);
    EXPECT_LT(LargestDifference(TrainAll(job, 3).parameters[0], TrainAll(whole, 1).parameters[0]),
              1e-9);
    job.file.set_dtype(v1::F32);
    whole.file.set_dtype(v1::F32);
    job.file.set_epochs(1);
    whole.file.set_epochs(1);
    EXPECT_LT(LargestDifference(TrainAll(job, 3).parameters[0], TrainAll(whole, 1).parameters[0]),
              1e-4);
  }
}

TEST(TrainerTest, TheOptimizerDoesTheSameOnWorkersAndOnServers) {
  Job job = Iris();
  job.file.set_epochs(5);
  const Trained on_workers = TrainAll(job, 3);
  job.file.set_optimizer_placement(v1::SERVERS);
  EXPECT_EQ(TrainAll(job, 3).parameters, on_workers.parameters);
}

// Makes a job with shards of 38, 38, 38 and 36 rows.
Job Uneven() {
  Job job = Iris();
  job.file.mutable_data()->set_shards(4);
  job.file.mutable_data()->set_validation_every(0);
  job.file.set_epochs(3);
  return job;
}

TEST(TrainerTest, WorkersWhoseRowsEndFirstFollowTheOthersAndEndEqual) {
  // With batches of 37 rows, the last worker has one step per pass and the others have two.
  for (const v1::OptimizerPlacement place : {v1::WORKERS, v1::SERVERS}) {
    Job job = Uneven();
    job.file.set_optimizer_placement(place);
    job.file.set_batch_size(37);
    EXPECT_EQ(TrainAll(job, 4).steps[3], 6u);
  }
}

TEST(TrainerTest, EmptyShardsTakePartAndEndEqual) {
  Job job = Uneven();
  job.file.mutable_data()->clear_table();
  job.file.mutable_data()->mutable_generated()->set_rows(5);
  job.file.mutable_data()->clear_target();
  job.file.mutable_model()->mutable_layers(2)->mutable_dense()->set_outputs(2);
  EXPECT_EQ(TrainAll(job, 4).steps[3], 3u);
}

TEST(TrainerTest, WeightedBySamplesUnevenBatchesEqualOneWorker) {
  Job job = Uneven();
  job.file.set_dtype(v1::F64);
  job.file.set_weight_by_samples(true);
  job.file.set_batch_size(7);
  Job whole = job;
  whole.file.set_batch_size(28);
  const auto reference = TrainAll(whole, 1).parameters[0];
  EXPECT_LT(LargestDifference(TrainAll(job, 4).parameters[0], reference), 1e-9);
  job.file.set_weight_by_samples(false);
  EXPECT_GT(LargestDifference(TrainAll(job, 4).parameters[0], reference), 1e-6);
}

TEST(TrainerTest, ABatchInPartsEqualsTheWholeBatch) {
  Job job = Iris();
  job.file.set_dtype(v1::F64);
  job.file.set_epochs(3);
  job.file.mutable_loss()->set_l2(0.1);
  const auto whole = TrainAll(job, 3).parameters[0];
  for (const uint32_t parts : {2, 3, 100}) {
    job.file.set_micro_batches(parts);
    EXPECT_LT(LargestDifference(TrainAll(job, 3).parameters[0], whole), 1e-9) << parts;
  }
}

TEST(TrainerTest, TheScheduleChangesTheLearningRate) {
  Job job = Iris();
  job.file.set_epochs(2);
  Job faster = job;
  faster.file.mutable_optimizer()->mutable_adam()->set_learning_rate(
      3 * job.file.optimizer().adam().learning_rate());
  job.file.mutable_schedule()->set_times_workers(true);
  EXPECT_EQ(TrainAll(job, 3).parameters, TrainAll(faster, 3).parameters);
  // After the first step the learning rate is nearly 0, so the parameters do not change.
  v1::LearningRateSchedule::Step& step = *job.file.mutable_schedule()->mutable_step();
  step.add_milestones(1);
  step.set_factor(1e-60);
  Job once = faster;
  once.file.clear_epochs();
  once.file.set_steps(1);
  EXPECT_EQ(TrainAll(job, 3).parameters, TrainAll(once, 3).parameters);
}

// Stores the tensors that are registered.
class Registrations : public ForwardingTeam {
 public:
  Registrations(Team& team, std::vector<std::string>& names)
      : ForwardingTeam(team), names_(names) {}

  absl::StatusOr<Group*> Register(const GroupSpec& spec) override {
    names_.clear();
    for (const TensorSpec& tensor : spec.tensors) names_.push_back(tensor.name);
    return ForwardingTeam::Register(spec);
  }

 private:
  std::vector<std::string>& names_;
};

TEST(TrainerTest, ServersDoNotHoldFrozenParameters) {
  for (const v1::OptimizerPlacement place : {v1::WORKERS, v1::SERVERS}) {
    Job job = Iris();
    job.file.set_epochs(1);
    job.file.set_optimizer_placement(place);
    v1::ParameterRule& rule = *job.file.add_parameter_rules();
    rule.add_parameters("dense[12]/*");
    rule.set_learning_rate_factor(0);
    FakeJob workers(1);
    Trained trained(1);
    std::vector<std::string> names;
    workers.Run([&](Team& team) {
      Registrations registrations(team, names);
      TrainOne(job, registrations, nullptr, trained);
    });
    SYNCGRADS_EXPECT_OK(trained.statuses[0]);
    EXPECT_EQ(names, (std::vector<std::string>{"dense3/kernel", "dense3/bias"}));
    EXPECT_EQ(trained.parameters[0].size(), 4u * 8 + 8 + 8 * 16 + 16 + 16 * 3 + 3);
  }
}

TEST(TrainerTest, EpochsOfAScheduleAreTheStepsOfAnEpoch) {
  // 40 rows of each worker in batches of 8: 5 steps.
  Job steps = Iris();
  steps.file.set_epochs(4);
  steps.file.mutable_schedule()->set_warmup_steps(10);
  steps.file.mutable_schedule()->mutable_cosine()->set_cycle_steps(8);
  Job epochs = steps;
  epochs.file.mutable_schedule()->clear_warmup_steps();
  epochs.file.mutable_schedule()->set_warmup_epochs(2);
  epochs.file.mutable_schedule()->mutable_cosine()->clear_cycle_steps();
  epochs.file.mutable_schedule()->mutable_cosine()->set_cycle_epochs(1.6);
  EXPECT_EQ(TrainAll(epochs, 3).parameters, TrainAll(steps, 3).parameters);
  epochs.file.mutable_schedule()->set_warmup_epochs(3);
  EXPECT_NE(TrainAll(epochs, 3).parameters, TrainAll(steps, 3).parameters);
}

// The sum of three workers' gradients is three times their average.
TEST(TrainerTest, GradientsCanBeSummed) {
  Job job = Iris();
  job.file.set_dtype(v1::F64);
  job.file.set_epochs(3);
  job.file.mutable_optimizer()->mutable_sgd()->set_learning_rate(0.03);
  const std::vector<double> averaged = TrainAll(job, 3).parameters[0];
  job.file.set_gradient_reduction(v1::SUM);
  job.file.mutable_optimizer()->mutable_sgd()->set_learning_rate(0.01);
  EXPECT_LT(LargestDifference(TrainAll(job, 3).parameters[0], averaged), 1e-9);
}

// The model is w x + b on rows (x, s, y). The squared errors of a batch are divided by the sum of
// its column s.
TEST(TrainerTest, TheLossCanBeDividedByAColumnOfTheBatch) {
  const TemporaryDirectory directory;
  directory.Write("t.csv", "x,s,y\n1,0.5,2\n2,1.5,4\n");
  auto job = ParseJobFile(R"(
      name: "column" dtype: F64 batch_size: 2 steps: 1
      data { table { path: "t.csv" } target: "y" weight_column: "s" order: AS_IN_SOURCE }
      model { layers { dense { outputs: 1 initialisation: ZEROS } } }
      loss { squared_error {} reduction: BY_COLUMN }
      optimizer { sgd { learning_rate: 0.1 } }
  )",
                          directory.path() + "/x.job");
  SYNCGRADS_ASSERT_OK(job);
  // The gradient with respect to w is -2 (1 * 2 + 2 * 4) / (0.5 + 1.5) = -10, and with respect to b
  // it is -2 (2 + 4) / 2 = -6.
  const auto parameters = TrainAll(*job, 1).parameters[0];
  ASSERT_EQ(parameters.size(), 2u);
  EXPECT_NEAR(parameters[0], 1, 1e-12);
  EXPECT_NEAR(parameters[1], 0.6, 1e-12);
  directory.Write("t.csv", "x,s,y\n1,-1,2\n2,1,4\n");
  FakeJob workers(1);
  ExpectError(TrainIn(workers, *job, 1).statuses[0], absl::StatusCode::kInvalidArgument,
              {"2 rows of step 0", "column \"s\""});
}

TEST(TrainerTest, AReplicaThatDiffersIsNamed) {
  Job job = Iris();
  job.file.set_epochs(1);
  FakeJob workers(3);
  workers.CorruptResultsOf(1);
  const Trained trained = TrainIn(workers, job, 3);
  ASSERT_FALSE(trained.replicas.identical());
  EXPECT_EQ(trained.replicas.differences[0].rank, 1u);
}

TEST(TrainerTest, StopsBetweenStepsWhenTold) {
  FakeJob workers(1);
  const Trained trained = TrainIn(workers, Iris(), 1, [](uint64_t steps) { return steps == 7; });
  ExpectError(trained.statuses[0], absl::StatusCode::kCancelled, {"after step 7"});
}

TEST(TrainerTest, TheTflonNetworkLearnsTheCurve) {
  auto job = LoadJobFile("examples/tflon/tflon.job");
  SYNCGRADS_ASSERT_OK(job);
  job->file.mutable_data()->clear_target();
  job->file.mutable_data()->set_shards(4);
  job->file.mutable_data()->mutable_generated()->set_rows(20000);
  const Trained trained = TrainAll(*job, 2);
  EXPECT_EQ(trained.steps[0], 1000u);
  std::cout << "held out: " << ToString(trained.held_out) << "\n";
  EXPECT_GE(trained.held_out.area_under_curve.value_or(0), 0.999);
}

}  // namespace
}  // namespace syncgrads
