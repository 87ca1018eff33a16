// Checkpoints of training runs through the real service: servers in this process, a
// client for each worker.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "tests/testing/cluster.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/base/file.h"
#include "worker/checkpoint/checkpoint_directory.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/job/job_file.h"
#include "worker/train/client_team.h"
#include "worker/train/resume.h"
#include "worker/train/run.h"
#include "worker/train/trainer.h"

namespace syncgrads {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Seconds(30);

// With everything that training goes on from: slots, random choices, moments of
// batches that are each worker's own, a learning rate that changes.
constexpr const char* kJob = R"(
  name: "resumed"
  seed: 3
  batch_size: 7
  epochs: 4
  chunk_bytes: 64
  data { table { path: "iris.csv" } target: "class" shards: 6 holdout_every: 5 }
  model {
    layers { window_input {} }
    layers { dense { outputs: 9 activation: TANH } }
    layers { batch_norm {} }
    layers { dropout { rate: 0.25 } }
    layers { dense { outputs: 3 } }
  }
  loss { logit_cross_entropy {} }
)";

constexpr const char* kOptimizers[] = {"momentum { learning_rate: 0.05 }",
                                       "adam { learning_rate: 0.01 }", "sgd { weight_decay: 0.1 }"};

// What all workers of a run have done and said.
struct Outcome {
  std::vector<absl::Status> statuses;
  std::vector<uint64_t> steps;
  bool identical = true;
  std::string notes;
};

// Waits for each checkpoint before the next is due: one that is due while the one
// before is being written is left out.
class UnhurriedProgress : public NoProgress {
 public:
  explicit UnhurriedProgress(const Job& job)
      : every_(job.file.checkpoint().every_steps()), path_(job.file.checkpoint().directory()) {}

  void Stepped(uint64_t step, std::optional<double>) override {
    if (!first_.has_value()) first_ = step;
    if (every_ == 0 || step % every_ != every_ - 1 || step < *first_ + every_ - 1) return;
    if (std::filesystem::is_directory(path_ + "/lock")) return;  // there will be none
    const std::string last =
        std::filesystem::path(CheckpointDirectory({path_}).PathOf(step - every_ + 1)).filename();
    const absl::Time deadline = absl::Now() + kTimeout;
    std::error_code none;
    while (std::filesystem::read_symlink(path_ + "/latest", none) < last || IsBeingWritten()) {
      ASSERT_LT(absl::Now(), deadline) << last;
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

 private:
  // Whether the writer still tidies up.
  bool IsBeingWritten() const {
    const int lock = open((path_ + "/lock").c_str(), O_RDWR | O_CLOEXEC);
    const bool is_free = lock >= 0 && flock(lock, LOCK_SH | LOCK_NB) == 0;
    close(lock);
    return !is_free;
  }

  std::optional<uint64_t> first_;
  const uint64_t every_;
  const std::string path_;
};

class CheckpointTest : public ::testing::Test {
 protected:
  // A job that keeps all of its checkpoints in the directory `name`.
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

  // A directory with only the checkpoint of one step.
  void CopyStep(const std::string& from, const std::string& to, uint64_t step) {
    std::filesystem::create_directory(directory_.path() + "/" + to);
    std::filesystem::copy(In(from).PathOf(step), In(to).PathOf(step));
  }

  // With `restored` nothing is trained: it gets what each worker then has.
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
        UnhurriedProgress progress(job);
        TrainerOptions trainer;
        trainer.step_timeout = kTimeout;
        trainer.progress = &progress;
        trainer.resume = resume;
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

  // The state after a step, without when it was written.
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
    SYNCGRADS_ASSIGN_OR_RETURN(const auto trainer,
                               Trainer<float>::Create(resumed, data, team, options));
    return *trainer->KeepState();
  }

  TemporaryDirectory directory_;
  // Of the servers, in the last run.
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
      std::string more = absl::StrCat("place: ", place, " optimizer { ", optimizer, " }");
      if (place == std::string("WORKERS")) more += " schedule { step { at: 20 factor: 0.1 } }";
      const Outcome undisturbed = Train(MakeJob(whole, more), 2, 3);
      // 40 rows of each worker, in batches of 7: a pass has 7 steps, and 15 is within
      // the third.
      EXPECT_EQ(undisturbed.steps[0], 28u);
      EXPECT_EQ(*In(whole).Steps(), (std::vector<uint64_t>{5, 10, 15, 20, 25, 28}));
      CopyStep(whole, broken, 15);
      const Outcome resumed = Train(MakeJob(broken, more), 2, 3, /*resume=*/true);
      EXPECT_EQ(resumed.steps[0], 28u);
      EXPECT_THAT(resumed.notes, HasSubstr("goes on after step 15, from "));
      for (const uint64_t step : {20, 25, 28}) {
        ExpectSameState(Read(broken, step), Read(whole, step));
        EXPECT_EQ(Read(broken, step).manifest.data, Read(whole, step).manifest.data);
      }
    }
  }
}

// What codecs have lost is not in a checkpoint, since nothing is left over there.
TEST_F(CheckpointTest, OfACompressedRunThatIsResumedTheEndIsBitIdentical) {
  int number = 0;
  for (const std::string place :
       {"place: WORKERS compression { min_elements: 1 push { codec: TOP_K fraction: 0.1 } "
        "result { codec: ONE_BIT } }",
        "place: SERVERS compression { min_elements: 1 push { codec: INT8 } }"}) {
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

// What the servers hold is compared in client/optimizer_state_test.
TEST_F(CheckpointTest, ItIsRestoredOntoOtherNumbersOfServersAndWorkersBitForBit) {
  for (const char* place : {"WORKERS", "SERVERS"}) {
    SCOPED_TRACE(place);
    const std::string adam = " optimizer { adam {} }";
    const Job job = MakeJob(place, absl::StrCat("place: ", place, adam));
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
      EXPECT_EQ(restored.manifest.data, (std::vector<DataSegment>{{3, 7, 25}, {2, 7, 0}}));
      // Moments of batches are each worker's own.
      for (const auto* tensors : {&restored.model, &restored.training}) {
        for (const SavedTensor& tensor : *tensors) {
          if (absl::StrContains(tensor.spec.name, "running_")) continue;
          const auto original = saved.Find(tensor.spec);
          SYNCGRADS_ASSERT_OK(original);
          EXPECT_TRUE(*original == tensor.bytes) << tensor.spec.name;
        }
      }
    }
    // And it goes on from there to the end.
    EXPECT_GT(Train(other, 3, 2, /*resume=*/true).steps[0], 28u);
  }
}

TEST_F(CheckpointTest, OfADamagedOneTheWorkerNamesTheFaultAndTheOneBeforeIsUsed) {
  const std::string more = "optimizer { adam {} }";
  const Job job = MakeJob("run", more);
  Train(job, 1, 2);
  const Snapshot whole = Read("run", 30);
  std::filesystem::resize_file(In("run").PathOf(40) + "/training.safetensors", 100);
  for (const uint64_t step : {35, 30}) std::filesystem::remove_all(In("run").PathOf(step));
  const Outcome resumed = Train(job, 1, 2, /*resume=*/true);
  EXPECT_THAT(resumed.notes, HasSubstr("a damaged checkpoint is passed over: "));
  EXPECT_THAT(resumed.notes, HasSubstr("step-000000000040/training.safetensors has 100 bytes"));
  EXPECT_THAT(resumed.notes, HasSubstr("goes on after step 25"));
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
         {"has checkpoints of an earlier run, the newest of step 40", "--resume"});
  Job other = job;
  other.file.set_seed(4);
  expect(other, true, absl::StatusCode::kInvalidArgument, {"its seed is 3, the job's is 4"});
  other = job;
  other.file.set_dtype(v1::F64);
  expect(other, true, absl::StatusCode::kInvalidArgument, {"its dtype is F32, the job's is F64"});
  expect(MakeJob("run", "optimizer { momentum {} }"), true, absl::StatusCode::kInvalidArgument,
         {"its optimizer is adam, the job's is momentum"});
  other = job;
  other.file.mutable_model()->mutable_layers(1)->mutable_dense()->set_outputs(8);
  expect(other, true, absl::StatusCode::kInvalidArgument,
         {"batch_norm1.running_mean", "the job's is"});
}

TEST_F(CheckpointTest, AnEmptyDirectoryIsTheBeginning) {
  const Outcome begun = Train(MakeJob("run", "optimizer { sgd {} }"), 1, 1, /*resume=*/true);
  EXPECT_THAT(begun.notes, HasSubstr("training begins at the beginning"));
}

// A directory is where the file to be locked should be.
TEST_F(CheckpointTest, WhatCannotBeWrittenIsSaidAndTrainingGoesOn) {
  for (const char* place : {"WORKERS", "SERVERS"}) {
    std::filesystem::create_directories(directory_.path() + "/taken/lock");
    const Outcome outcome =
        Train(MakeJob("taken", absl::StrCat("place: ", place, " optimizer { sgd {} }")), 2, 2);
    EXPECT_EQ(outcome.steps[0], 40u);
    EXPECT_THAT(outcome.notes, HasSubstr("NO CHECKPOINT after step 5: "));
    EXPECT_THAT(outcome.notes, HasSubstr("training goes on"));
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
