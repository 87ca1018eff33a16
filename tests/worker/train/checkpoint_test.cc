// Checkpoints of training runs with the real service: the servers run in this process, and each
// worker has its own client.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "tests/testing/cluster.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/base/file.h"
#include "worker/checkpoint/checkpoint_directory.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/job/job_file.h"
#include "worker/run/operations.h"
#include "worker/team/client_team.h"
#include "worker/train/resume.h"
#include "worker/trainer/trainer.h"

namespace syncgrads {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Minutes(2);

// A job with everything that training resumes from: slots of the optimizer, random choices, batch
// statistics that differ between workers, and a learning rate that changes.
constexpr const char* kJob = R"(
  name: "resumed"
  seed: 3
  batch_size: 7
  epochs: 4
  chunk_bytes: 64
  ema { decay: 0.9 }
  parameter_rules { parameters: "batch_norm1.bias" learning_rate_factor: 0 }
  parameter_rules { parameters: "dense1/*" learning_rate_factor: 0.5 }
  data { table { path: "iris.csv" } target: "class" shards: 6 validation_every: 5 }
  model {
    layers { min_max_scaling {} }
    layers { dense { outputs: 9 activation: TANH } }
    layers { batch_norm {} }
    layers { dropout { rate: 0.25 } }
    layers { dense { outputs: 3 } }
  }
  loss { logit_cross_entropy {} }
)";

constexpr const char* kOptimizers[] = {"momentum { learning_rate: 0.05 }",
                                       "adam { learning_rate: 0.01 }", "sgd { weight_decay: 0.1 }"};

// The actions and reports of all workers of a run.
struct Outcome {
  std::vector<absl::Status> statuses;
  std::vector<uint64_t> steps;
  bool identical = true;
  std::string notes;
};

// Waits for each checkpoint in the first step after it. Without this a checkpoint could be left
// out, because the one before is still being written.
class UnhurriedProgress : public NoProgress {
 public:
  explicit UnhurriedProgress(CheckpointWriter& writer) : writer_(writer) {}

  // The last step that has ended; 0 before the first.
  uint64_t step() const { return step_; }

  void Stepped(uint64_t step, std::optional<double>) override {
    step_ = step;
    SYNCGRADS_EXPECT_OK(writer_.Finish(kTimeout));
  }

 private:
  CheckpointWriter& writer_;
  uint64_t step_ = 0;
};

class CheckpointTest : public ::testing::Test {
 protected:
  // Makes a job that keeps all of its checkpoints in the directory `name`.
  Job MakeJob(const std::string& name, const std::string& more, uint64_t every_steps = 5) {
    auto job =
        ParseJobFile(absl::StrCat(kJob, more, " checkpoint { keep: 100 every_steps: ", every_steps,
                                  " directory: \"", directory_.path(), "/", name, "\" }"),
                     "examples/iris/resumed.job");
    SYNCGRADS_EXPECT_OK(job);
    return *job;
  }

  CheckpointDirectory In(const std::string& name) {
    return CheckpointDirectory({directory_.path() + "/" + name});
  }

  // Makes a directory that has only the checkpoint of one step.
  void CopyStep(const std::string& from, const std::string& to, uint64_t step) {
    std::filesystem::create_directory(directory_.path() + "/" + to);
    std::filesystem::copy(In(from).PathOf(step), In(to).PathOf(step));
  }

  // Runs a job. If `restored` is given, nothing is trained, and `restored` gets the state of each
  // worker.
  Outcome Run(const Job& job, uint32_t servers, uint32_t workers, bool resume = false,
              std::vector<Snapshot>* restored = nullptr) {
    testing::Cluster cluster(servers);
    Outcome outcome;
    outcome.statuses.resize(workers);
    outcome.steps.resize(workers);
    Mutex mutex;
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < workers; ++rank) {
      threads.emplace_back([&, rank] {
        ClientOptions options;
        options.coordinator = cluster.coordinator();
        options.job = job.file.name();
        options.rank = rank;
        options.world_size = workers;
        Client client(options);
        SYNCGRADS_ASSERT_OK(client.Join(kTimeout));
        ClientTeam team(client, kTimeout);
        CheckpointWriter writer(CheckpointOptionsOf(job));
        UnhurriedProgress progress(writer);
        TrainerOptions trainer;
        trainer.step_timeout = kTimeout;
        trainer.progress = &progress;
        trainer.resume = resume;
        trainer.should_stop = [&] {
          return rank < stop_at_.size() && progress.step() >= stop_at_[rank];
        };
        trainer.note = [&](const std::string& line) {
          MutexLock lock(mutex);
          absl::StrAppend(&outcome.notes, line, "\n");
        };
        if (restored != nullptr) {
          const auto state = RestoreOnly(job, team, trainer);
          outcome.statuses[rank] = state.status();
          MutexLock lock(mutex);
          if (state.ok()) restored->push_back(*state);
          return;
        }
        trainer.checkpoints = &writer;
        const auto result = RunTraining(job, team, trainer, "");
        outcome.statuses[rank] = result.status();
        SYNCGRADS_EXPECT_OK(client.Leave(kTimeout));
        if (!result.ok()) return;
        outcome.steps[rank] = result->steps;
        MutexLock lock(mutex);
        outcome.identical = outcome.identical && result->replicas.identical();
      });
    }
    for (std::thread& thread : threads) thread.join();
    journal_ = cluster.journal().Text();
    return outcome;
  }

  Outcome Train(const Job& job, uint32_t servers, uint32_t workers, bool resume = false) {
    Outcome outcome = Run(job, servers, workers, resume);
    for (const absl::Status& status : outcome.statuses) EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(outcome.identical);
    return outcome;
  }

  // Reads the state after a step.
  Snapshot Read(const std::string& name, uint64_t step) {
    auto checkpoint = ReadCheckpoint(In(name).PathOf(step));
    SYNCGRADS_EXPECT_OK(checkpoint);
    if (!checkpoint.ok()) return {};
    auto snapshot = SnapshotOf(*std::move(checkpoint));
    SYNCGRADS_EXPECT_OK(snapshot);
    return *std::move(snapshot);
  }

  void ExpectSameState(const Snapshot& a, const Snapshot& b) {
    EXPECT_EQ(a.manifest.step, b.manifest.step);
    ASSERT_EQ(a.model.size(), b.model.size());
    ASSERT_EQ(a.training.size(), b.training.size());
    for (const auto* tensors : {&a.model, &a.training}) {
      for (const SavedTensor& tensor : *tensors) {
        const auto other = b.Find(tensor.spec);
        SYNCGRADS_EXPECT_OK(other);
        EXPECT_TRUE(other.ok() && *other == tensor.bytes) << tensor.spec.name;
      }
    }
  }

  static absl::StatusOr<Snapshot> RestoreOnly(const Job& job, Team& team, TrainerOptions options) {
    SYNCGRADS_ASSIGN_OR_RETURN(std::optional<Resumption> resumption,
                               FindResumption(job, true, std::nullopt, team, options.note));
    const Job resumed = JobFor(job, resumption->manifest);
    SYNCGRADS_ASSIGN_OR_RETURN(const DataSet data, LoadDataSet(resumed, DataSetOptions(), team));
    options.resumption = &*resumption;
    SYNCGRADS_ASSIGN_OR_RETURN(const auto trainer, Trainer::Create(resumed, data, team, options));
    return *trainer->KeepState();
  }

  TemporaryDirectory directory_;
  // By rank: the step after which each worker of the next runs is requested to stop. Empty: none
  // is.
  std::vector<uint64_t> stop_at_;
  // The journal of the servers of the last run.
  std::string journal_;
  std::vector<Snapshot> restored_;
};

TEST_F(CheckpointTest, ARunThatIsResumedEndsBitIdenticalToTheUndisturbedOne) {
  int number = 0;
  for (const char* place : {"WORKERS", "SERVERS"}) {
    for (const char* optimizer : kOptimizers) {
      SCOPED_TRACE(absl::StrCat(place, ", ", optimizer));
      const std::string whole = absl::StrCat("whole", ++number);
      const std::string broken = absl::StrCat("broken", number);
      std::string more =
          absl::StrCat("optimizer_placement: ", place, " optimizer { ", optimizer, " }");
      if (place == std::string("WORKERS")) {
        more += " schedule { step { milestones: 20 factor: 0.1 } }";
      }
      const Outcome undisturbed = Train(MakeJob(whole, more), 2, 3);
      // Each worker has two shards with 20 training rows each. A batch has 4 rows of one and 3 of
      // the other, so a pass has 7 steps, and step 15 is in the third pass.
      EXPECT_EQ(undisturbed.steps[0], 28u);
      EXPECT_EQ(*In(whole).Steps(), (std::vector<uint64_t>{5, 10, 15, 20, 25, 28}));
      CopyStep(whole, broken, 15);
      const Outcome resumed = Train(MakeJob(broken, more), 2, 3, /*resume=*/true);
      EXPECT_EQ(resumed.steps[0], 28u);
      EXPECT_THAT(resumed.notes, HasSubstr("resuming after step 15, from "));
      for (const uint64_t step : {20, 25, 28}) {
        ExpectSameState(Read(broken, step), Read(whole, step));
        EXPECT_EQ(Read(broken, step).manifest.data, Read(whole, step).manifest.data);
      }
    }
  }
}

// A scheduler's signal reaches the workers at different steps.
TEST_F(CheckpointTest, WorkersThatAreStoppedOneAfterTheOtherLeaveTheCheckpointOfTheFirst) {
  const std::string more = "optimizer { momentum { learning_rate: 0.05 } }";
  Train(MakeJob("whole", more, /*every_steps=*/0), 2, 3);
  stop_at_ = {6, 9, 12};
  const Outcome stopped = Run(MakeJob("stopped", more, /*every_steps=*/0), 2, 3);
  for (const absl::Status& status : stopped.statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  }
  const std::vector<uint64_t> kept = *In("stopped").Steps();
  ASSERT_EQ(kept.size(), 1u);
  for (const int rank : {1, 2}) {
    EXPECT_THAT(std::string(stopped.statuses[rank].message()),
                HasSubstr(absl::StrCat("another worker was stopped after step ", kept[0])));
  }
  stop_at_.clear();
  const Outcome resumed = Train(MakeJob("stopped", more, /*every_steps=*/0), 2, 3, /*resume=*/true);
  EXPECT_THAT(resumed.notes, HasSubstr(absl::StrCat("resuming after step ", kept[0], ", from ")));
  ExpectSameState(Read("stopped", 28), Read("whole", 28));
}

TEST_F(CheckpointTest, WorkersThatAreStoppedTogetherTakeACheckpointBeside) {
  stop_at_ = {8, 8, 8};
  const Outcome stopped =
      Run(MakeJob("stopped", "optimizer { sgd { learning_rate: 0.05 } }", /*every_steps=*/5), 2, 3);
  for (const absl::Status& status : stopped.statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  }
  const std::vector<uint64_t> kept = *In("stopped").Steps();
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0], 5u);
  EXPECT_GT(kept[1], 8u);
}

// A checkpoint does not have the codecs' residuals, because none remain at that step.
TEST_F(CheckpointTest, OfACompressedRunThatIsResumedTheEndIsBitIdentical) {
  int number = 0;
  for (const std::string place :
       {"optimizer_placement: WORKERS compression { min_elements: 1 "
        "push { codec: TOP_K fraction: 0.1 } result { codec: ONE_BIT } }",
        "optimizer_placement: SERVERS compression { min_elements: 1 push { codec: INT8 } }"}) {
    SCOPED_TRACE(place);
    const std::string more = place + " optimizer { momentum { learning_rate: 0.05 } }";
    const std::string whole = absl::StrCat("lossy", ++number);
    const std::string broken = absl::StrCat("lossy_broken", number);
    Train(MakeJob(whole, more), 2, 3);
    EXPECT_EQ(*In(whole).Steps(), (std::vector<uint64_t>{5, 10, 15, 20, 25, 28}));
    CopyStep(whole, broken, 15);
    Train(MakeJob(broken, more), 2, 3, /*resume=*/true);
    for (const uint64_t step : {20, 25}) ExpectSameState(Read(broken, step), Read(whole, step));
  }
}

// The state on the servers is compared in client/optimizer_state_test.
TEST_F(CheckpointTest, ItIsRestoredOntoOtherNumbersOfServersAndWorkersBitForBit) {
  for (const char* place : {"WORKERS", "SERVERS"}) {
    SCOPED_TRACE(place);
    const std::string adam = " optimizer { adam {} }";
    const Job job = MakeJob(place, absl::StrCat("optimizer_placement: ", place, adam));
    Train(job, 2, 3);
    const std::string restart = absl::StrCat(place, "-restart");
    CopyStep(place, restart, 25);
    Job other = MakeJob(restart, adam);
    other.file.set_chunk_bytes(40);
    const Snapshot saved = Read(place, 25);
    restored_.clear();
    for (const absl::Status& status : Run(other, 3, 2, /*resume=*/true, &restored_).statuses) {
      SYNCGRADS_EXPECT_OK(status);
    }
    ASSERT_EQ(restored_.size(), 2u);
    for (const Snapshot& restored : restored_) {
      EXPECT_EQ(restored.manifest.data, (std::vector<DataSegment>{{3, 7, 25, 4}, {2, 7, 0, 4}}));
      // Batch statistics belong to each worker, so they are not compared.
      for (const auto* tensors : {&restored.model, &restored.training}) {
        for (const SavedTensor& tensor : *tensors) {
          if (absl::StrContains(tensor.spec.name, "running_")) continue;
          const auto original = saved.Find(tensor.spec);
          SYNCGRADS_ASSERT_OK(original);
          EXPECT_TRUE(*original == tensor.bytes) << tensor.spec.name;
        }
      }
    }
    // Training continues from there to the end.
    EXPECT_GT(Train(other, 3, 2, /*resume=*/true).steps[0], 28u);
  }
}

// All workers share one shard.
TEST_F(CheckpointTest, MoreWorkersThatEachTrainOnAllRowsResume) {
  const auto make = [this](const std::string& name) {
    Job job = MakeJob(name, "optimizer { adam {} }");
    job.file.mutable_data()->set_partition(v1::DataSpec::ALL);
    job.file.mutable_data()->set_shards(0);
    return job;
  };
  Train(make("two"), 1, 2);
  CopyStep("two", "three", 5);
  const Outcome resumed = Train(make("three"), 1, 3, /*resume=*/true);
  EXPECT_THAT(resumed.notes, HasSubstr("resuming after step 5"));
  EXPECT_EQ(Read("three", 5).manifest.shards, 1u);
}

TEST_F(CheckpointTest, OfADamagedOneTheWorkerNamesTheFaultAndTheOneBeforeIsUsed) {
  const std::string more = "optimizer { adam {} }";
  const Job job = MakeJob("run", more);
  Train(job, 1, 2);
  const Snapshot whole = Read("run", 30);
  std::filesystem::resize_file(In("run").PathOf(40) + "/training.safetensors", 100);
  for (const uint64_t step : {35, 30}) std::filesystem::remove_all(In("run").PathOf(step));
  const Outcome resumed = Train(job, 1, 2, /*resume=*/true);
  EXPECT_THAT(resumed.notes, HasSubstr("skipping a damaged checkpoint: "));
  EXPECT_THAT(resumed.notes, HasSubstr("step-000000000040/training.safetensors has 100 bytes"));
  EXPECT_THAT(resumed.notes, HasSubstr("resuming after step 25"));
  ExpectSameState(Read("run", 30), whole);
}

TEST_F(CheckpointTest, WhatDoesNotFitIsAnErrorOfAllWorkersThatNamesBoth) {
  const std::string more = "optimizer { adam {} }";
  const Job job = MakeJob("run", more);
  Train(job, 1, 2);
  const auto expect = [&](const Job& other, bool resume, absl::StatusCode code,
                          std::initializer_list<std::string> texts) {
    for (const absl::Status& status : Run(other, 1, 2, resume).statuses) {
      ExpectError(status, code, texts);
    }
  };
  expect(job, false, absl::StatusCode::kFailedPrecondition,
         {"has checkpoints of an earlier run, the newest after step 40", "--resume"});
  Job other = job;
  other.file.set_seed(4);
  expect(other, true, absl::StatusCode::kInvalidArgument, {"its seed is 3, but the job's is 4"});
  other = job;
  other.file.mutable_data()->set_partition(v1::DataSpec::CONTIGUOUS);
  expect(other, true, absl::StatusCode::kInvalidArgument,
         {"its data.partition is PERMUTED, but the job's is CONTIGUOUS"});
  other = job;
  other.file.set_dtype(v1::F64);
  expect(other, true, absl::StatusCode::kInvalidArgument,
         {"its dtype is F32, but the job's is F64"});
  expect(MakeJob("run", "optimizer { momentum {} }"), true, absl::StatusCode::kInvalidArgument,
         {"its optimizer is adam, but the job's is momentum"});
  other =
      MakeJob("run", "optimizer { adam {} } schedule { step { milestone_epochs: 2 factor: 0.5 } }");
  other.file.set_batch_size(6);
  expect(other, true, absl::StatusCode::kFailedPrecondition,
         {"numbers of epochs", "40 steps were made by 2 workers with batch_size 7",
          "the job has 2 workers with batch_size 6", "a step has 14 rows"});
  other.file.set_batch_size(14);
  for (const absl::Status& status : Run(other, 1, 1, /*resume=*/true).statuses) {
    SYNCGRADS_EXPECT_OK(status);
  }
  other = job;
  other.file.mutable_model()->mutable_layers(1)->mutable_dense()->set_outputs(8);
  expect(other, true, absl::StatusCode::kInvalidArgument,
         {"batch_norm1.running_mean", "the job's is"});
}

TEST_F(CheckpointTest, AnEmptyDirectoryIsTheBeginning) {
  const Outcome begun = Train(MakeJob("run", "optimizer { sgd {} }"), 1, 1, /*resume=*/true);
  EXPECT_THAT(begun.notes, HasSubstr("training starts from the beginning"));
}

// A directory exists at the path of the lock file, so checkpoints cannot be written.
TEST_F(CheckpointTest, WhatCannotBeWrittenIsSaidAndTrainingGoesOn) {
  for (const char* place : {"WORKERS", "SERVERS"}) {
    std::filesystem::create_directories(directory_.path() + "/taken/lock");
    const Outcome outcome = Train(
        MakeJob("taken", absl::StrCat("optimizer_placement: ", place, " optimizer { sgd {} }")), 2,
        2);
    EXPECT_EQ(outcome.steps[0], 40u);
    EXPECT_THAT(outcome.notes, HasSubstr("checkpoint not written after step 5: "));
    EXPECT_THAT(outcome.notes, HasSubstr("training continues"));
    EXPECT_THAT(journal_, HasSubstr("could not write the checkpoint after step 5"));
  }
}

TEST_F(CheckpointTest, TheBestOnRowsHeldOutIsKept) {
  Job job = MakeJob("run", "optimizer { adam { learning_rate: 0.05 } }");
  job.file.mutable_checkpoint()->set_keep(1);
  job.file.mutable_checkpoint()->set_best(v1::Checkpoint::ACCURACY);
  Train(job, 1, 2);
  const auto best = ReadCheckpoint(In("run").path() + "/best");
  const auto latest = ReadCheckpoint(In("run").path() + "/latest");
  SYNCGRADS_ASSERT_OK(best);
  SYNCGRADS_ASSERT_OK(latest);
  EXPECT_EQ(latest->manifest.step, 40u);
  EXPECT_GE(best->manifest.score, latest->manifest.score);
  EXPECT_EQ(best->manifest.score, best->manifest.evaluation.at("accuracy"));
  EXPECT_GT(best->manifest.evaluation.at("loss"), 0);
  EXPECT_LE(In("run").Steps()->size(), 2u);
}

}  // namespace
}  // namespace syncgrads
