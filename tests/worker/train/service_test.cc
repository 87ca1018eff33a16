// Training with the real service: the servers run in this process, and each worker has its own
// client.

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "tests/testing/cluster.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "tests/worker/testing/training.h"
#include "worker/base/random.h"
#include "worker/job/job_file.h"
#include "worker/team/client_team.h"

namespace syncgrads {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(2);

Job Iris() {
  auto job = LoadJobFile("examples/iris/iris.job");
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

void Work(const Job& job, const std::string& coordinator, uint32_t rank, uint32_t world_size,
          Trained& trained) {
  ClientOptions options;
  options.coordinator = coordinator;
  options.job = job.file.name();
  options.rank = rank;
  options.world_size = world_size;
  Client client(options);
  SYNCGRADS_ASSERT_OK(client.Join(kTimeout));
  ASSERT_EQ(client.rank(), rank);
  ClientTeam team(client, kTimeout);
  TrainOne(job, team, nullptr, trained);
  SYNCGRADS_EXPECT_OK(client.Leave(kTimeout));
}

// Trains with `world_size` workers and checks that all replicas are equal.
Trained TrainAll(const Job& job, uint32_t world_size, uint32_t servers) {
  testing::Cluster cluster(servers);
  Trained trained(world_size);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back(
        [&, rank] { Work(job, cluster.coordinator(), rank, world_size, trained); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : trained.statuses) EXPECT_TRUE(status.ok()) << status;
  for (const auto& parameters : trained.parameters) EXPECT_EQ(parameters, trained.parameters[0]);
  EXPECT_TRUE(trained.replicas.identical()) << ToString(trained.replicas);
  return trained;
}

TEST(ServiceTest, IrisEndsWithTheSameBitsOnAllWorkersWithAnyNumberOfServersInAnyRun) {
  Job job = Iris();
  // Small chunks, so that every server has some.
  job.file.set_chunk_bytes(64);
  const Trained one = TrainAll(job, 3, 1);
  EXPECT_EQ(one.steps[0], 250u);
  EXPECT_GE(*one.held_out.correct, 24u);
  for (const uint32_t servers : {1, 2, 3}) {
    EXPECT_EQ(TrainAll(job, 3, servers).parameters[0], one.parameters[0]) << servers << " servers";
  }
}

TEST(ServiceTest, TheOptimizerDoesTheSameOnWorkersAndOnServers) {
  for (const std::string optimizer :
       {"sgd { learning_rate: 0.01 weight_decay: 0.01 }", "momentum { learning_rate: 0.01 }",
        "nesterov { learning_rate: 0.01 }", "rms_prop {}", "adagrad { learning_rate: 0.01 }",
        "adam {}", "adam_w {}", "lion { learning_rate: 0.001 weight_decay: 0.01 }"}) {
    SCOPED_TRACE(optimizer);
    Job job = Iris();
    job.file.set_chunk_bytes(64);
    job.file.set_epochs(3);
    ASSERT_TRUE(
        google::protobuf::TextFormat::ParseFromString(optimizer, job.file.mutable_optimizer()));
    const Trained on_workers = TrainAll(job, 3, 2);
    job.file.set_optimizer_placement(v1::SERVERS);
    EXPECT_EQ(TrainAll(job, 3, 2).parameters, on_workers.parameters);
  }
}

// With plain updates, and with norms of the whole step.
TEST(ServiceTest, AScheduleDoesTheSameOnWorkersAndOnServers) {
  for (const double clip_norm : {0.0, 0.3}) {
    Job job = Iris();
    job.file.set_chunk_bytes(64);
    job.file.set_epochs(5);
    job.file.set_clip_norm(clip_norm);
    const std::vector<double> constant = TrainAll(job, 3, 1).parameters[0];
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
        "warmup_steps: 5 times_workers: true cosine { cycle_steps: 8 minimum: 0.1 dampening: 0.5 }",
        job.file.mutable_schedule()));
    const std::vector<double> on_workers = TrainAll(job, 3, 1).parameters[0];
    EXPECT_NE(on_workers, constant);
    job.file.set_optimizer_placement(v1::SERVERS);
    const std::vector<double> on_servers = TrainAll(job, 3, 2).parameters[0];
    EXPECT_LT(LargestDifference(on_servers, on_workers), 1e-6) << clip_norm;
  }
}

Job IrisWithNorms(const std::string& optimizer, double clip_norm) {
  Job job = Iris();
  job.file.set_epochs(3);
  job.file.set_clip_norm(clip_norm);
  job.file.mutable_optimizer()->Clear();
  EXPECT_TRUE(
      google::protobuf::TextFormat::ParseFromString(optimizer, job.file.mutable_optimizer()));
  return job;
}

constexpr char kSgd[] = "sgd { learning_rate: 0.02 }";
constexpr char kLamb[] = "lamb { learning_rate: 0.05 }";
constexpr char kLars[] = "lars { learning_rate: 0.2 weight_decay: 0.01 }";

TEST(ServiceTest, NormsOnServersHaveTheBitsOfTheWorkersWhereNoTensorIsCut) {
  for (const std::string optimizer : {kSgd, kLamb, kLars}) {
    Job job = IrisWithNorms(optimizer, 0.3);
    const Trained on_workers = TrainAll(job, 3, 1);
    job.file.set_clip_norm(0);
    EXPECT_NE(TrainAll(job, 3, 1).parameters, on_workers.parameters) << "it was clipped";
    job.file.set_clip_norm(0.3);
    job.file.set_optimizer_placement(v1::SERVERS);
    EXPECT_EQ(TrainAll(job, 3, 1).parameters, on_workers.parameters) << optimizer;
  }
}

// Factors of learning rates and of the weight decay, and a frozen layer in the middle; with an
// optimizer that updates each chunk by itself, and with ones that need norms.
TEST(ServiceTest, ParameterRulesHaveTheSameBitsOnWorkersAndOnServers) {
  for (const std::string optimizer :
       {"adam_w { learning_rate: 0.02 weight_decay: 0.1 }", "lamb { learning_rate: 0.05 }",
        "lars { learning_rate: 0.2 weight_decay: 0.1 }"}) {
    Job job = IrisWithNorms(optimizer, /*clip_norm=*/0);
    const std::vector<double> without = TrainAll(job, 3, 1).parameters[0];
    ASSERT_TRUE(google::protobuf::TextFormat::MergeFromString(
        R"(decay_kernels_only: true
           parameter_rules { parameters: "dense2/*" learning_rate_factor: 0 }
           parameter_rules { parameters: "dense1/*" parameters: "dense2/bias"
                             learning_rate_factor: 0.25 }
           parameter_rules { parameters: "*/kernel" weight_decay_factor: 3 }
           parameter_rules { parameters: "*" learning_rate_factor: 2 })",
        &job.file));
    const std::vector<double> on_workers = TrainAll(job, 3, 1).parameters[0];
    job.file.set_optimizer_placement(v1::SERVERS);
    EXPECT_EQ(TrainAll(job, 3, 1).parameters[0], on_workers) << optimizer;

    // The frozen layer, whose parameters come first, has its initial values.
    Job still = IrisWithNorms("sgd { learning_rate: 0 }", /*clip_norm=*/0);
    *still.file.mutable_parameter_rules() = job.file.parameter_rules();
    const std::vector<double> initial = TrainAll(still, 1, 1).parameters[0];
    const size_t frozen = 8 * 16 + 16;
    for (size_t i = 0; i < frozen; ++i) EXPECT_EQ(on_workers[i], initial[i]) << i;
    EXPECT_NE(on_workers, initial);
    EXPECT_NE(on_workers, without);
  }
}

TEST(ServiceTest, NormsAreOfAllChunksOfAllServers) {
  for (const std::string optimizer : {kSgd, kLamb, kLars}) {
    for (const double clip_norm : {0.0, 0.3}) {
      Job job = IrisWithNorms(optimizer, clip_norm);
      job.file.set_dtype(v1::F64);
      const std::vector<double> on_workers = TrainAll(job, 3, 1).parameters[0];
      job.file.set_optimizer_placement(v1::SERVERS);
      for (const uint32_t chunk_bytes : {40, 256}) {
        job.file.set_chunk_bytes(chunk_bytes);
        const std::vector<double> one = TrainAll(job, 3, 1).parameters[0];
        EXPECT_LT(LargestDifference(one, on_workers), 1e-12) << optimizer << " " << chunk_bytes;
        for (const uint32_t servers : {2, 3}) {
          EXPECT_EQ(TrainAll(job, 3, servers).parameters[0], one) << optimizer << " " << servers;
        }
      }
    }
  }
}

TEST(ServiceTest, ThreeWorkersEqualOneWorkerWithThreeTimesTheBatch) {
  for (const v1::OptimizerPlacement place : {v1::WORKERS, v1::SERVERS}) {
    Job job = Iris();
    job.file.set_optimizer_placement(place);
    job.file.set_dtype(v1::F64);
    Job whole = job;
    whole.file.set_batch_size(24);
    EXPECT_LT(
        LargestDifference(TrainAll(job, 3, 2).parameters[0], TrainAll(whole, 1, 1).parameters[0]),
        1e-9);
    job.file.set_dtype(v1::F32);
    whole.file.set_dtype(v1::F32);
    job.file.set_epochs(1);
    whole.file.set_epochs(1);
    EXPECT_LT(
        LargestDifference(TrainAll(job, 3, 2).parameters[0], TrainAll(whole, 1, 1).parameters[0]),
        1e-4);
  }
}

// The workers have 38, 38, 38 and 36 rows in batches of 37, so the last one ends first.
TEST(ServiceTest, WorkersWhoseRowsEndFirstFollowTheOthersAndEndEqual) {
  for (const v1::OptimizerPlacement place : {v1::WORKERS, v1::SERVERS}) {
    Job job = Iris();
    job.file.set_optimizer_placement(place);
    job.file.mutable_data()->set_shards(4);
    job.file.mutable_data()->set_validation_every(0);
    job.file.set_epochs(10);
    job.file.set_batch_size(37);
    EXPECT_EQ(TrainAll(job, 4, 2).steps[3], 20u);
  }
}

TEST(ServiceTest, WeightedBySamplesUnevenBatchesEqualOneWorker) {
  Job job = Iris();
  job.file.set_dtype(v1::F64);
  job.file.set_weight_by_samples(true);
  job.file.mutable_data()->set_shards(4);
  job.file.mutable_data()->set_validation_every(0);
  job.file.set_epochs(3);
  job.file.set_batch_size(7);
  Job whole = job;
  whole.file.set_batch_size(28);
  EXPECT_LT(
      LargestDifference(TrainAll(job, 4, 2).parameters[0], TrainAll(whole, 1, 1).parameters[0]),
      1e-9);
}

// Makes the Iris job with a batch norm layer.
Job NormalisedIris(bool across_workers) {
  Job job = Iris();
  const v1::LayerSpec last = job.file.model().layers(job.file.model().layers_size() - 1);
  v1::LayerSpec norm;
  norm.set_name("bn");
  norm.mutable_batch_norm()->set_across_workers(across_workers);
  auto& layers = *job.file.mutable_model()->mutable_layers();
  layers.RemoveLast();
  *layers.Add() = norm;
  *layers.Add() = last;
  job.file.set_dtype(v1::F64);
  job.file.set_epochs(3);
  return job;
}

// The largest difference that rounding makes in these jobs. A bias before a batch norm has no
// effect on the loss, so its gradient is the rounding error of a sum (1e-16 to 1e-14, depending on
// the processor's vectors). Adam multiplies such a gradient by up to learning_rate / epsilon = 1e5
// in each of some 15 steps.
constexpr double kRounding = 1e-7;

TEST(ServiceTest, WithBatchNormAcrossThemThreeWorkersEqualOneWithThreeTimesTheBatch) {
  const Job job = NormalisedIris(/*across_workers=*/true);
  Job whole = job;
  whole.file.set_batch_size(3 * job.file.batch_size());
  const Trained three = TrainAll(job, 3, 2);
  const Trained one = TrainAll(whole, 1, 1);
  EXPECT_LT(LargestDifference(three.parameters[0], one.parameters[0]), kRounding);
  EXPECT_LT(LargestDifference(three.states, one.states), kRounding);
  EXPECT_GT(
      LargestDifference(TrainAll(NormalisedIris(false), 3, 2).parameters[0], one.parameters[0]),
      1e-4)
      << "each by itself is another model";
}

// The workers have 38, 38, 38 and 36 rows, so batches are uneven and the last worker ends first.
TEST(ServiceTest, WithBatchNormAcrossThemUnevenBatchesEqualOneWorker) {
  Job job = NormalisedIris(/*across_workers=*/true);
  job.file.set_weight_by_samples(true);
  job.file.mutable_data()->set_shards(4);
  job.file.mutable_data()->set_validation_every(0);
  for (const uint32_t batch : {7, 37}) {
    job.file.set_batch_size(batch);
    Job whole = job;
    whole.file.set_batch_size(4 * batch);
    const Trained four = TrainAll(job, 4, 2);
    const Trained one = TrainAll(whole, 1, 1);
    EXPECT_LT(LargestDifference(four.parameters[0], one.parameters[0]), kRounding) << batch;
    EXPECT_LT(LargestDifference(four.states, one.states), kRounding) << batch;
  }
}

// Makes a job with three images of 3x32x32 numbers, one in each of three shards.
Job ThreeImages(const TemporaryDirectory& directory) {
  constexpr int kNumbers = 3 * 32 * 32;
  std::string table;
  for (int i = 0; i < kNumbers; ++i) absl::StrAppend(&table, "x", i, ",");
  absl::StrAppend(&table, "class\n");
  RandomStream random(17, {});
  for (const int label : {3, 1, 8}) {
    for (int i = 0; i < kNumbers; ++i) absl::StrAppend(&table, 2 * random.NextUniform() - 1, ",");
    absl::StrAppend(&table, label, "\n");
  }
  directory.Write("images.csv", table);
  const auto job = ParseJobFile(R"(
      name: "images" seed: 5 batch_size: 1 steps: 3
      data {
        table { path: "images.csv" }
        target: "class"
        shards: 3
        image { channels: 3 height: 32 width: 32 }
      }
      model {
        layers { conv2d { outputs: 3 kernel_size: 7 } }
        layers { flatten {} }
        layers { dense { outputs: 10 } }
      }
      loss { logit_cross_entropy {} }
      optimizer { momentum { learning_rate: 0.01 momentum: 0.9 } }
  )",
                                directory.path() + "/images.job");
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

std::vector<double> Difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  std::vector<double> difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return difference;
}

TEST(ServiceTest, ThreeReplicasOfAConvolutionalNetworkWithASampleEachEqualTheFullBatch) {
  const TemporaryDirectory directory;
  Job job = ThreeImages(directory);
  const double rate = job.file.optimizer().momentum().learning_rate();
  const uint64_t steps = job.file.steps();
  ASSERT_GT(steps, 1u);
  for (const v1::OptimizerPlacement place : {v1::WORKERS, v1::SERVERS}) {
    job.file.set_optimizer_placement(place);
    Job whole = job;
    whole.file.set_batch_size(3);
    // The parameters after a number of steps, and the velocity, which is their last change.
    const auto after = [](Job one, uint64_t count, uint32_t workers) {
      one.file.set_steps(count);
      return TrainAll(one, workers, workers == 1 ? 1 : 2);
    };
    // The first velocity is the learning rate times the mean gradient.
    Job unchanged = whole;
    unchanged.file.mutable_optimizer()->mutable_momentum()->set_learning_rate(0);
    const std::vector<double> initial = after(unchanged, 1, 1).parameters[0];
    std::vector<double> gradients =
        Difference(after(job, 1, 3).parameters[0], after(whole, 1, 1).parameters[0]);
    for (double& one : gradients) one /= rate;
    EXPECT_LT(LargestDifference(gradients, std::vector<double>(gradients.size())), 1e-4);
    EXPECT_GT(LargestDifference(initial, after(whole, 1, 1).parameters[0]) / rate, 1e-2);

    const Trained three = after(job, steps, 3), one = after(whole, steps, 1);
    EXPECT_LT(
        LargestDifference(Difference(three.parameters[0], after(job, steps - 1, 3).parameters[0]),
                          Difference(one.parameters[0], after(whole, steps - 1, 1).parameters[0])),
        1e-4);
    EXPECT_EQ(three.slots.size(), place == v1::WORKERS ? initial.size() : 0);
    EXPECT_LT(LargestDifference(three.slots, one.slots), 1e-4);

    const auto& replicas = three.parameters[0];
    const auto& full_batch = one.parameters[0];
    // A 7x7 convolution from 3 to 3 channels, and a dense layer from 26 * 26 * 3 numbers to 10.
    ASSERT_EQ(replicas.size(), 3u * 3 * 49 + 3 + 2028 * 10 + 10);
    EXPECT_LT(LargestDifference(replicas, full_batch), 1e-4);
    EXPECT_GT(LargestDifference(full_batch, initial), 1e-2) << "nothing was trained";
  }
}

}  // namespace
}  // namespace syncgrads
