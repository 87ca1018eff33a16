// Training runs with the optimizer on an emulated CUDA device: whenever the host reads the state,
// it gets what the device has computed, and the device gets what the host has written.

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/nn/cuda/emulation/emulation.h"
#include "tests/worker/testing/fake_team.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/checkpoint/checkpoint_directory.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/job/job_file.h"
#include "worker/nn/cuda/cuda_accelerators.h"
#include "worker/run/operations.h"
#include "worker/train/compute.h"
#include "worker/train/step_callback.h"

namespace syncgrads {
namespace {

using emulation::Schedule;

constexpr uint32_t kWorkers = 3;

// Records the loss of each step, and the number of the last step.
class Losses : public NoProgress {
 public:
  explicit Losses(std::vector<double>& losses) : losses_(losses) {}
  void Stepped(uint64_t step, std::optional<double> loss) override {
    step_ = step;
    losses_.push_back(loss.value_or(-1));
  }
  uint64_t step() const { return step_; }

 private:
  std::vector<double>& losses_;
  uint64_t step_ = 0;
};

struct Outcome {
  // Indexed by rank.
  std::vector<absl::Status> statuses{kWorkers};
  std::vector<TrainingResult> results{kWorkers};
  std::vector<std::vector<double>> losses{kWorkers};
  std::vector<std::string> models{kWorkers};
  std::vector<std::optional<Snapshot>> kept{kWorkers};
  // The state that rank 0 has saved after every third step.
  std::string saved;
};

struct Variant {
  std::string device = "cuda";
  bool resume = false;
  // The step after which the workers request a stop; 0: train to the end.
  uint64_t stop_after = 0;
  std::optional<uint32_t> corrupted;
  // If `one_by_one`, results are delivered one at a time, and nothing is saved. The wait for tensor
  // `lost_tensor`, or a later one, of step `lost_step` fails; 0: no wait fails.
  bool one_by_one = false;
  uint64_t lost_step = 0;
  uint32_t lost_tensor = 0;
};

class EmulatedOptimizerTest : public testing::TestWithParam<Schedule> {
 protected:
  // Makes a job with ten steps. Its layers have no states, because fetching states would wait for
  // all queued operations.
  static Job Iris(const std::string& more, v1::OptimizerPlacement place = v1::WORKERS,
                  double l2 = 0) {
    auto job = ParseJobFile(absl::StrCat(R"(
        name: "iris" seed: 1 batch_size: 8 epochs: 2 threads: 1
        data { table { path: "iris.csv" } target: "class" shards: 3 validation_every: 5 }
        model {
          layers { dense { outputs: 8 activation: TANH } }
          layers { dense { outputs: 3 } }
        }
        loss { logit_cross_entropy {} }
        micro_batches: 2 )",
                                         more),
                            "examples/iris/emulated.job");
    EXPECT_TRUE(job.ok()) << job.status();
    job->file.set_optimizer_placement(place);
    job->file.mutable_loss()->set_l2(l2);
    return *job;
  }

  Outcome Train(const Job& job, const Variant& variant = {}) {
    emulation::Options options;
    options.schedule = GetParam();
    options.slow = variant.one_by_one;  // so that some results are there while a device computes
    emulation::Configure(options);
    const TemporaryDirectory directory;
    const std::string saved = directory.path() + "/saved";
    Outcome outcome;
    FakeJob workers(kWorkers);
    if (variant.corrupted.has_value()) workers.CorruptResultsOf(*variant.corrupted);
    if (variant.one_by_one) {
      workers.AnswerOneByOne([&](uint32_t, uint64_t step, TensorId tensor) {
        if (step != variant.lost_step || ToNumber(tensor) < variant.lost_tensor) {
          return absl::OkStatus();
        }
        return absl::UnavailableError("gone");
      });
    }
    workers.Run([&](Team& team) {
      const uint32_t rank = team.rank();
      Extensions extensions;
      if (!variant.one_by_one) extensions.after_step.push_back(SaveEvery(3, saved));
      Losses losses(outcome.losses[rank]);
      TrainerOptions options;
      options.progress = &losses;
      options.extensions = &extensions;
      options.resume = variant.resume;
      options.kept = &outcome.kept[rank];
      options.should_stop = [&] {
        return variant.stop_after > 0 && losses.step() >= variant.stop_after;
      };
      const auto choice = ChooseDevice(variant.device, "f32", rank, CudaAccelerators());
      SYNCGRADS_ASSERT_OK(choice);
      options.device = *choice;
      const std::string output = absl::StrCat(directory.path(), "/", rank);
      const auto result = RunTraining(job, team, options, output);
      outcome.statuses[rank] = result.status();
      if (!result.ok()) return;
      outcome.results[rank] = *result;
      outcome.models[rank] = Contents(output);
    });
    for (const int step : {3, 6, 9}) {
      absl::StrAppend(&outcome.saved, Contents(absl::StrCat(saved, ".step", step)));
    }
    return outcome;
  }

  static std::string Contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  static void ExpectSuccess(const Outcome& outcome) {
    for (const absl::Status& status : outcome.statuses) SYNCGRADS_EXPECT_OK(status);
    EXPECT_TRUE(outcome.results[0].replicas.identical());
  }

  static void ExpectSameTraining(const Outcome& actual, const Outcome& expected) {
    ExpectSuccess(actual);
    EXPECT_EQ(actual.losses, expected.losses);
    EXPECT_EQ(actual.models, expected.models);
    EXPECT_EQ(actual.saved, expected.saved);
    EXPECT_GT(actual.saved.size(), 300u);
  }
};

INSTANTIATE_TEST_SUITE_P(Schedules, EmulatedOptimizerTest,
                         testing::Values(Schedule::kRandom, Schedule::kOldestStreamFirst,
                                         Schedule::kNewestStreamFirst));

// If the servers apply the optimizer, it runs on the host.
TEST_P(EmulatedOptimizerTest, ItHasTheBitsOfTheHosts) {
  for (const std::string optimizer :
       {"sgd { learning_rate: 0.05 weight_decay: 0.1 }", "momentum { learning_rate: 0.05 }",
        "adam { learning_rate: 0.01 }", "lion { learning_rate: 0.001 }",
        // LAMB needs norms, so it runs on the host in any case.
        "lamb { learning_rate: 0.01 }"}) {
    SCOPED_TRACE(optimizer);
    const std::string more = absl::StrCat("optimizer { ", optimizer, " }");
    for (const double l2 : {0.0, 0.05}) {
      ExpectSameTraining(Train(Iris(more, v1::WORKERS, l2)), Train(Iris(more, v1::SERVERS, l2)));
    }
  }
}

constexpr char kAdam[] = "optimizer { adam { learning_rate: 0.01 } } ";

TEST_P(EmulatedOptimizerTest, ReplicasAreComparedAsTheyAreOnTheDevices) {
  const Job job = Iris(absl::StrCat(kAdam, "check_replicas_every: 4"));
  ExpectSuccess(Train(job));
  Variant corrupted;
  corrupted.corrupted = 1;
  for (const absl::Status& status : Train(job, corrupted).statuses) {
    ExpectError(status, absl::StatusCode::kDataLoss, {"after step 4", "on worker 1"});
  }
}

// Compares everything except the time of writing.
void ExpectSameState(const Snapshot& actual, const Snapshot& expected) {
  EXPECT_EQ(actual.manifest.step, expected.manifest.step);
  for (const auto* tensors : {&expected.model, &expected.training}) {
    for (const SavedTensor& tensor : *tensors) {
      const auto found = actual.Find(tensor.spec);
      SYNCGRADS_ASSERT_OK(found);
      EXPECT_TRUE(*found == tensor.bytes) << tensor.spec.name;
    }
  }
}

TEST_P(EmulatedOptimizerTest, AResumedTrainingEndsAsIfItHadNotBeenStopped) {
  const TemporaryDirectory directory;
  const auto with_checkpoints = [&](const std::string& name) {
    return Iris(
        absl::StrCat(kAdam, "checkpoint { directory: \"", directory.path(), "/", name, "\" }"));
  };
  const Outcome whole = Train(with_checkpoints("whole"));
  ExpectSuccess(whole);
  const Job job = with_checkpoints("stopped");
  Variant stops;
  stops.stop_after = 4;
  const Outcome stopped = Train(job, stops);
  for (const absl::Status& status : stopped.statuses) {
    ExpectError(status, absl::StatusCode::kCancelled, {"stopped by a signal after step 5"});
  }
  auto checkpoint = ReadCheckpoint(directory.path() + "/stopped/latest");
  SYNCGRADS_ASSERT_OK(checkpoint);
  const auto snapshot = SnapshotOf(*std::move(checkpoint));
  SYNCGRADS_ASSERT_OK(snapshot);
  // The state that a worker keeps in memory is the same, also without checkpoints.
  stops.stop_after = 5;
  for (const Outcome& outcome : {stopped, Train(Iris(kAdam), stops)}) {
    for (const std::optional<Snapshot>& kept : outcome.kept) {
      ASSERT_TRUE(kept.has_value());
      ExpectSameState(*kept, *snapshot);
    }
  }
  Variant resumes;
  resumes.resume = true;
  const Outcome resumed = Train(job, resumes);
  ExpectSuccess(resumed);
  EXPECT_EQ(resumed.models, whole.models);
}

TEST_P(EmulatedOptimizerTest, ResultsThatAreTakenWhenLayersNeedThemMakeNoDifference) {
  Variant one_by_one;
  one_by_one.one_by_one = true;
  for (const v1::OptimizerPlacement place : {v1::WORKERS, v1::SERVERS}) {
    for (const double l2 : {0.0, 0.05}) {
      const Job job = Iris(kAdam, place, l2);
      const Outcome usual = Train(job);
      const Outcome actual = Train(job, one_by_one);
      ExpectSuccess(actual);
      EXPECT_EQ(actual.losses, usual.losses);
      EXPECT_EQ(actual.models, usual.models);
    }
  }
}

TEST_P(EmulatedOptimizerTest, WhereResultsAreLostHalfWayTheStateIsThatOfTheStepBefore) {
  Variant lost;
  lost.one_by_one = true;
  lost.lost_step = 5;
  const Outcome before = Train(Iris(kAdam), lost);
  lost.lost_tensor = 3;
  const Outcome half_way = Train(Iris(kAdam), lost);
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    ExpectError(half_way.statuses[rank], absl::StatusCode::kUnavailable, {"gone"});
    ASSERT_TRUE(before.kept[rank].has_value() && half_way.kept[rank].has_value());
    EXPECT_EQ(half_way.kept[rank]->manifest.step, 4u);
    ExpectSameState(*half_way.kept[rank], *before.kept[rank]);
  }
}

// On the CPU, the gradients are rounded differently.
TEST_P(EmulatedOptimizerTest, StepsAloneEqualTheProcessors) {
  for (const std::string consistency : {"local_steps { steps: 4 }", "best_of { steps: 3 }"}) {
    SCOPED_TRACE(consistency);
    Job job = Iris(absl::StrCat("dtype: F64 optimizer { momentum { learning_rate: 0.05 } } ",
                                "consistency { ", consistency, " }"));
    Variant processor;
    processor.device = "cpu";
    const Outcome expected = Train(job, processor);
    const Outcome actual = Train(job);
    ExpectSuccess(expected);
    ExpectSuccess(actual);
    EXPECT_NEAR(actual.results[0].held_out->loss, expected.results[0].held_out->loss, 1e-9);
    EXPECT_NEAR(actual.results[0].trained_on.loss, expected.results[0].trained_on.loss, 1e-9);
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      ASSERT_EQ(actual.losses[rank].size(), expected.losses[rank].size());
      for (size_t i = 0; i < actual.losses[rank].size(); ++i) {
        EXPECT_NEAR(actual.losses[rank][i], expected.losses[rank][i], 1e-9) << rank << ", " << i;
      }
    }
  }
}

}  // namespace
}  // namespace syncgrads
