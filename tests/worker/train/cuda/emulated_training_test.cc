// Complete training runs on an emulated CUDA device: gradients are downloaded and parameters are
// uploaded while the device computes. The result must equal that of the CPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/nn/cuda/emulation/emulation.h"
#include "tests/worker/testing/fake_team.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/training.h"
#include "worker/data/images/byte_images.h"
#include "worker/data/readers/custom_readers.h"
#include "worker/data/readers/labels.h"
#include "worker/job/job_file.h"
#include "worker/nn/cuda/cuda_accelerators.h"
#include "worker/train/compute.h"
#include "worker/trainer/trainer.h"

namespace syncgrads {
namespace {

using emulation::Schedule;

class EmulatedTrainingTest : public testing::TestWithParam<Schedule> {
 protected:
  EmulatedTrainingTest() {
    emulation::Options options;
    options.schedule = GetParam();
    emulation::Configure(options);
  }
};

INSTANTIATE_TEST_SUITE_P(Schedules, EmulatedTrainingTest,
                         testing::Values(Schedule::kRandom, Schedule::kOldestStreamFirst,
                                         Schedule::kNewestStreamFirst));

Job Load(const std::string& path) {
  auto job = LoadJobFile(path);
  EXPECT_TRUE(job.ok()) << job.status();
  job->file.set_threads(1);
  return *job;
}

// Trains with `world_size` workers on `device`, or on CUDA devices that are chosen by rank. Sets
// `early` to the number of results that were there while a device computed.
Trained TrainOn(const std::string& device, const Job& job, uint32_t world_size,
                uint64_t* early = nullptr) {
  FakeJob workers(world_size);
  Trained trained(world_size);
  workers.Run([&](Team& team) {
    const auto choice = ChooseDevice(device, "f32", team.rank(), CudaAccelerators());
    ASSERT_TRUE(choice.ok()) << choice.status();
    TrainOne(job, team, nullptr, trained, *choice);
  });
  for (const absl::Status& status : trained.statuses) SYNCGRADS_EXPECT_OK(status);
  EXPECT_TRUE(trained.replicas.identical()) << ToString(trained.replicas);
  if (early != nullptr) *early = workers.early_results();
  return trained;
}

void ExpectTheSameTraining(const Job& job, uint32_t world_size, double tolerance) {
  const Trained expected = TrainOn("cpu", job, world_size);
  const Trained actual = TrainOn("cuda", job, world_size);
  EXPECT_EQ(actual.steps, expected.steps);
  EXPECT_LT(LargestDifference(actual.parameters[0], expected.parameters[0]), tolerance);
  EXPECT_LT(LargestDifference(actual.states, expected.states), tolerance);
  EXPECT_EQ(actual.held_out.rows, expected.held_out.rows);
  EXPECT_NEAR(actual.held_out.loss, expected.held_out.loss, tolerance);
}

TEST_P(EmulatedTrainingTest, IrisEqualsTheProcessorsWhereverTheOptimizerIs) {
  for (const v1::OptimizerPlacement place : {v1::WORKERS, v1::SERVERS}) {
    Job job = Load("examples/iris/iris.job");
    job.file.set_optimizer_placement(place);
    job.file.set_dtype(v1::F64);
    job.file.set_epochs(2);
    ExpectTheSameTraining(job, 3, 1e-9);
  }
}

TEST_P(EmulatedTrainingTest, PartsPenaltiesAndWorkersWithoutRowsEqualTheProcessors) {
  Job job = Load("examples/iris/iris.job");
  job.file.set_dtype(v1::F64);
  job.file.set_epochs(2);
  job.file.set_micro_batches(3);
  job.file.mutable_loss()->set_l2(0.1);
  job.file.mutable_data()->set_shards(4);
  job.file.mutable_data()->set_validation_every(0);
  // With batches of 37 rows, the last worker has one step per pass and the others have two.
  job.file.set_batch_size(37);
  ExpectTheSameTraining(job, 4, 1e-9);
}

// Convolutions, batch norm, pooling and dropout, in float.
TEST_P(EmulatedTrainingTest, AConvolutionalNetworkEqualsTheProcessors) {
  Job job = Load("examples/digits/digits.job");
  job.file.clear_epochs();
  job.file.set_steps(4);
  // Not Adam: it makes large steps out of gradients that consist only of rounding errors.
  job.file.mutable_optimizer()->mutable_sgd()->set_learning_rate(0.05);
  auto& layers = *job.file.mutable_model()->mutable_layers();
  v1::LayerSpec norm, dropout;
  norm.set_name("norm");
  norm.mutable_batch_norm();
  dropout.set_name("dropout");
  dropout.mutable_dropout()->set_rate(0.2);
  for (const v1::LayerSpec& layer : {dropout, norm}) {
    *layers.Add() = layer;
    // Moves the new layer to the front.
    for (int i = layers.size() - 1; i > 0; --i) layers.SwapElements(i, i - 1);
  }
  ExpectTheSameTraining(job, 2, 1e-4);
}

// The gradient of a layer is averaged, and uploaded again, before those of the layers in front of
// it are there.
TEST_P(EmulatedTrainingTest, ResultsThatAreUploadedEarlyEqualTheProcessors) {
  emulation::Options options;
  options.schedule = GetParam();
  options.slow = true;
  emulation::Configure(options);
  Job job = Load("examples/iris/iris.job");
  job.file.set_dtype(v1::F64);
  job.file.set_epochs(1);
  uint64_t early = 0;
  const Trained expected = TrainOn("cpu", job, 2, &early);
  EXPECT_EQ(early, 0u);
  const Trained actual = TrainOn("cuda", job, 2, &early);
  EXPECT_GT(early, 0u);
  EXPECT_LT(LargestDifference(actual.parameters[0], expected.parameters[0]), 1e-9);
}

absl::StatusOr<Table> MakeUpImages(const CustomReaderOptions& options) {
  const Shape shape = Shape::Image(2, 6, 6);
  const size_t size = static_cast<size_t>(shape.size());
  Table table;
  table.rows = 30;
  std::string pixels(table.rows * size, '\0');
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<char>(i * i % 251);
  table.images = std::make_shared<ByteImages>(shape, std::move(pixels), size, 0, "made up");
  std::vector<uint32_t> labels;
  for (size_t row = 0; row < table.rows; ++row) labels.push_back(row % 3);
  SetLabels(
      labels, options.columns.target_kind, [](size_t) { return "made up"; }, table);
  return table;
}

// The next batch is uploaded while the device computes.
TEST_P(EmulatedTrainingTest, ImagesThatAreReadAheadEqualTheProcessors) {
  CustomReaders readers;
  readers.Add("made_up", MakeUpImages);
  for (const uint32_t parts : {1, 2}) {
    auto job = ParseJobFile(absl::StrCat(R"(
        name: "images" seed: 3 batch_size: 5 steps: 9 threads: 1 micro_batches: )",
                                         parts, R"(
        data { custom { kind: "made_up" } validation_every: 10 }
        model { layers { conv2d { outputs: 4 kernel_size: 3 } } layers { flatten {} }
                layers { dense { outputs: 3 } } }
        loss { logit_cross_entropy {} } optimizer { sgd { learning_rate: 0.05 } })"),
                            "images.job");
    SYNCGRADS_ASSERT_OK(job);
    job->readers = &readers;
    ExpectTheSameTraining(*job, 2, 1e-4);
  }
}

TEST_P(EmulatedTrainingTest, TwoRunsGiveTheSameBits) {
  Job job = Load("examples/iris/iris.job");
  job.file.set_epochs(1);
  EXPECT_EQ(TrainOn("cuda", job, 3).parameters, TrainOn("cuda:1,0", job, 3).parameters);
}

// Whatever runs out of memory in a step. The first step allocates; later ones only launch.
TEST(EmulatedTrainingErrorTest, AStepWithoutMemoryIsSkippedAndCounted) {
  for (const auto& [call, step] :
       {std::pair(emulation::Call::kMalloc, 0), std::pair(emulation::Call::kMallocHost, 0),
        std::pair(emulation::Call::kLaunch, 3), std::pair(emulation::Call::kCublas, 3)}) {
    emulation::Configure({});
    Job job = Load("examples/iris/iris.job");
    job.file.clear_epochs();
    job.file.set_steps(6);
    FakeJob workers(1);
    Trained trained(1);
    const auto exhaust = [call = call, step = step](uint64_t steps) {
      if (steps == static_cast<uint64_t>(step)) emulation::Exhaust(call, /*after=*/1);
      return false;
    };
    workers.Run([&](Team& team) {
      TrainOne(job, team, exhaust, trained, *ChooseDevice("cuda:0", "f32", 0, CudaAccelerators()));
    });
    SYNCGRADS_EXPECT_OK(trained.statuses[0]);
    EXPECT_EQ(trained.steps[0], 6u);
    EXPECT_EQ(trained.out_of_memory[0], 1u) << static_cast<int>(call);
  }
}

TEST(EmulatedTrainingErrorTest, AfterAnEvaluationWithoutMemoryTheReplicaIsAsBefore) {
  emulation::Configure({});
  Job job = Load("examples/iris/iris.job");
  job.file.mutable_ema()->set_decay(0.5);
  FakeJob workers(1);
  workers.Run([&](Team& team) {
    const auto data = LoadDataSet(job, DataSetOptions(), team);
    SYNCGRADS_ASSERT_OK(data);
    NoProgress progress;
    TrainerOptions options;
    options.progress = &progress;
    options.device = *ChooseDevice("cuda:0", "f32", 0, CudaAccelerators());
    const auto trainer = Trainer::Create(job, *data, team, options);
    SYNCGRADS_ASSERT_OK(trainer);
    Replica& replica = (*trainer)->replica();
    // From here on, the parameters differ from their averages.
    std::vector<size_t> all;
    for (const NamedTensor& tensor : replica.Values()) {
      all.push_back(all.size());
      *static_cast<float*>(tensor.data) += 1;
    }
    replica.Upload(all);
    SYNCGRADS_ASSERT_OK(replica.Finish());
    const auto values = [&replica] {
      SYNCGRADS_EXPECT_OK(replica.Fetch(ReplicaPart::kValues));
      std::string bytes;
      for (const NamedTensor& tensor : replica.Values()) {
        bytes.append(static_cast<const char*>(tensor.data), tensor.spec.bytes());
      }
      return bytes;
    };
    const auto evaluate = [&] {
      return replica.Evaluate("test", job.file.data(), *data,
                              RowsOf(data->data, /*validation_every=*/0, /*held_out=*/false), team,
                              EvaluationOptions());
    };
    const std::string before = values();
    emulation::Exhaust(emulation::Call::kCublas);
    ExpectError(evaluate(), absl::StatusCode::kResourceExhausted, {});
    EXPECT_EQ(values(), before);
    const auto evaluated = evaluate();
    SYNCGRADS_ASSERT_OK(evaluated);
    EXPECT_EQ(evaluated->rows, 150u);
    EXPECT_EQ(values(), before);
  });
}

TEST(EmulatedTrainingErrorTest, ADeviceWithoutRoomEndsTheTrainingAndSaysSo) {
  emulation::Options options;
  options.device_bytes = size_t{40} << 20;  // cuBLAS's workspace takes 32 MiB of them
  emulation::Configure(options);
  Job job = Load("examples/iris/iris.job");
  job.file.mutable_model()->mutable_layers(1)->mutable_dense()->set_outputs(400000);
  FakeJob workers(1);
  Trained trained(1);
  workers.Run([&](Team& team) {
    TrainOne(job, team, nullptr, trained, *ChooseDevice("cuda:0", "f32", 0, CudaAccelerators()));
  });
  ExpectError(trained.statuses[0], absl::StatusCode::kResourceExhausted,
              {"cuda:0 has not enough free memory", "41943040"});
}

}  // namespace
}  // namespace syncgrads
