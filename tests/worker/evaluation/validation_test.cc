// Validation while a job trains, with the real service: the servers run in this process, and each
// worker has its own client.

#include "worker/evaluation/validation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "common/mutex.h"
#include "tests/testing/cluster.h"
#include "tests/testing/wait_until.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/base/file.h"
#include "worker/checkpoint/checkpoint_directory.h"
#include "worker/checkpoint/checkpoint_writer.h"
#include "worker/checkpoint/snapshot.h"
#include "worker/io/safetensors.h"
#include "worker/job/job_file.h"
#include "worker/run/operations.h"
#include "worker/team/client_team.h"
#include "worker/train/resume.h"

namespace syncgrads {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kTimeout = absl::Minutes(2);
constexpr uint32_t kWorkers = 3;

// What a worker reported.
struct Reported {
  absl::Status status;
  std::vector<std::pair<uint64_t, Scores>> validations;
  std::string stopped;
  uint64_t steps = 0;
  std::optional<Evaluation> validation;
  std::string notes;
};

class Recorder : public NoProgress {
 public:
  explicit Recorder(Reported& reported) : reported_(reported) {}
  void Stepped(uint64_t step, std::optional<double>) override { reported_.steps = step; }
  void Validated(uint64_t step, const Scores& scores) override {
    reported_.validations.emplace_back(step, scores);
    if (on_validated) on_validated(step);
  }
  void StoppedEarly(uint64_t step, const std::string& reason) override {
    reported_.stopped = absl::StrCat(step, ": ", reason);
  }

  std::function<void(uint64_t step)> on_validated;

 private:
  Reported& reported_;
};

class ValidationRecordTest : public ::testing::Test {
 protected:
  static v1::EarlyStopping Stopping(v1::EarlyStopping::Metric metric, double min_delta = 0) {
    v1::EarlyStopping stopping;
    stopping.set_metric(metric);
    stopping.set_patience(2);
    stopping.set_min_delta(min_delta);
    return stopping;
  }
  static Evaluation Of(double loss, uint64_t correct = 0) {
    Evaluation evaluation;
    evaluation.rows = 4;
    evaluation.loss = loss;
    evaluation.correct = correct;
    return evaluation;
  }
  // Adds an evaluation after each tenth step until training ends. Returns the reason and the step.
  static std::string StopOf(ValidationRecord record, const std::vector<Evaluation>& evaluations) {
    for (size_t i = 0; i < evaluations.size(); ++i) {
      const uint64_t step = 10 * (i + 1);
      record.Add(step, evaluations[i]);
      const std::optional<std::string> reason = record.ReasonToStop();
      if (reason.has_value()) return absl::StrCat(step, ": ", *reason);
    }
    return "";
  }
  // Returns the steps after which the last validation was the best one.
  static std::vector<uint64_t> BestOf(ValidationRecord record,
                                      const std::vector<Evaluation>& evaluations) {
    std::vector<uint64_t> steps;
    for (size_t i = 0; i < evaluations.size(); ++i) {
      record.Add(10 * (i + 1), evaluations[i]);
      if (record.is_best()) steps.push_back(10 * (i + 1));
    }
    return steps;
  }
};

TEST_F(ValidationRecordTest, EachImprovementStartsTheCountAgain) {
  const ValidationRecord record(Stopping(v1::EarlyStopping::VAL_LOSS), v1::Checkpoint::LOSS);
  const std::vector<Evaluation> evaluations = {Of(3), Of(2), Of(2.5), Of(1), Of(1.1), Of(1.2)};
  EXPECT_EQ(StopOf(record, evaluations),
            "60: val_loss has not improved in 2 validations; the best, 1, was after step 40");
  EXPECT_THAT(BestOf(record, evaluations), ElementsAre(10, 20, 40));
}

TEST_F(ValidationRecordTest, TheAccuracyDecidesWhateverTheLossDoes) {
  const std::vector<Evaluation> falling = {Of(3, 2), Of(2, 3), Of(1, 2), Of(0.5, 1)};
  const ValidationRecord by_accuracy(Stopping(v1::EarlyStopping::TOP1), v1::Checkpoint::ACCURACY);
  const ValidationRecord by_loss(Stopping(v1::EarlyStopping::VAL_LOSS), v1::Checkpoint::LOSS);
  EXPECT_EQ(StopOf(by_accuracy, falling),
            "40: top1 has not improved in 2 validations; the best, 0.75, was after step 20");
  EXPECT_EQ(StopOf(by_loss, falling), "");
  EXPECT_THAT(BestOf(by_accuracy, falling), ElementsAre(10, 20));
  EXPECT_THAT(BestOf(by_loss, falling), ElementsAre(10, 20, 30, 40));
  const std::vector<Evaluation> rising = {Of(1, 1), Of(2, 2), Of(3, 3), Of(4, 4)};
  EXPECT_EQ(StopOf(by_accuracy, rising), "");
  EXPECT_EQ(StopOf(by_loss, rising),
            "30: val_loss has not improved in 2 validations; the best, 1, was after step 10");
}

TEST_F(ValidationRecordTest, OnlyMoreThanMinDeltaIsAnImprovementForEarlyStopping) {
  const ValidationRecord record(Stopping(v1::EarlyStopping::VAL_LOSS, 0.5), v1::Checkpoint::LOSS);
  // The third is better than the first, and the fourth is not better than the third by so much.
  const std::vector<Evaluation> evaluations = {Of(3), Of(2.5), Of(2.25), Of(2), Of(1.75)};
  EXPECT_EQ(StopOf(record, evaluations),
            "50: val_loss has not improved by more than 0.5 in 2 validations; the best, 2.25, was "
            "after step 30");
  // The best checkpoint does not depend on it.
  EXPECT_THAT(BestOf(record, evaluations), ElementsAre(10, 20, 30, 40, 50));
}

TEST_F(ValidationRecordTest, AValidationWithoutAValueIsNeverTheBest) {
  const ValidationRecord record(Stopping(v1::EarlyStopping::VAL_LOSS), v1::Checkpoint::LOSS);
  const std::vector<Evaluation> evaluations = {Of(NAN), Of(2), Of(NAN), Evaluation(), Of(1)};
  EXPECT_EQ(StopOf(record, evaluations),
            "40: val_loss has not improved in 2 validations; the best, 2, was after step 20");
  EXPECT_THAT(BestOf(record, evaluations), ElementsAre(20, 50));
  EXPECT_EQ(StopOf(record, {Of(NAN), Of(NAN)}),
            "20: val_loss has not improved in 2 validations; no validation had a value");
}

// Accuracies are above 0, and losses count with the opposite sign.
TEST_F(ValidationRecordTest, ValuesOfAnotherMetricAreNotComparedAfterAResume) {
  ValidationRecord before(Stopping(v1::EarlyStopping::TOP1), v1::Checkpoint::ACCURACY);
  before.Add(1, Of(0.5, 3));
  before.Add(2, Of(0.4, 2));
  const auto resume = [&](v1::EarlyStopping::Metric metric, v1::Checkpoint::Best best) {
    ValidationRecord record(Stopping(metric), best);
    std::memcpy(record.state().data, before.state().data, before.state().spec.bytes());
    record.BeginWhatDiffers("TOP1", "ACCURACY");
    return record;
  };
  const std::vector<Evaluation> evaluations = {Of(0.3, 2), Of(0.2, 2), Of(0.1, 2), Of(0.1, 2)};
  const ValidationRecord by_loss = resume(v1::EarlyStopping::VAL_LOSS, v1::Checkpoint::LOSS);
  EXPECT_EQ(StopOf(by_loss, evaluations), "");
  EXPECT_THAT(BestOf(by_loss, evaluations), ElementsAre(10, 20, 30));
  const ValidationRecord mixed = resume(v1::EarlyStopping::TOP1, v1::Checkpoint::LOSS);
  EXPECT_EQ(StopOf(mixed, evaluations),
            "10: top1 has not improved in 2 validations; the best, 0.75, was after step 1");
  const ValidationRecord same = resume(v1::EarlyStopping::TOP1, v1::Checkpoint::ACCURACY);
  EXPECT_THAT(BestOf(same, evaluations), ElementsAre());
}

class ValidationTest : public ::testing::Test {
 protected:
  // A job with uneven rows, on 31 of which it is validated.
  Job MakeJob(const std::string& more, const std::string& rate = "0.05",
              const std::string& dtype = "dtype: F64") {
    WriteRows("train.csv", 0, 2, 100);
    WriteRows("val.csv", 1, 4, 31);
    auto job = ParseJobFile(
        absl::StrCat("name: \"validated\" seed: 3 batch_size: 5 chunk_bytes: 64 ", dtype, "\n",
                     "data { table { path: \"train.csv\" } target: \"class\" split: "
                     "KEEP_REMAINDER }\n",
                     "model { layers { batch_norm {} } layers { dense { outputs: 3 } } }\n",
                     "loss { logit_cross_entropy {} } optimizer { momentum { learning_rate: ", rate,
                     " } }\n", more),
        directory_.path() + "/validated.job");
    SYNCGRADS_EXPECT_OK(job);
    return *job;
  }

  // Writes `count` rows of Iris, beginning with row `begin`, each `every`-th.
  void WriteRows(const std::string& name, size_t begin, size_t every, size_t count) {
    const auto iris = ReadFile("examples/iris/iris.csv", 1 << 20);
    SYNCGRADS_ASSERT_OK(iris);
    const std::vector<std::string> lines = absl::StrSplit(*iris, '\n', absl::SkipEmpty());
    std::string text = lines[0] + "\n";
    for (size_t i = 0; i < count; ++i) {
      text += lines[1 + (begin + i * every) % (lines.size() - 1)] + "\n";
    }
    directory_.Write(name, text);
  }

  std::vector<Reported> Train(const Job& job, bool resume = false, const std::string& output = "") {
    testing::Cluster cluster(2);
    std::vector<Reported> reported(kWorkers);
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      threads.emplace_back([&, rank] {
        ClientOptions options;
        options.coordinator = cluster.coordinator();
        options.job = job.file.name();
        options.rank = rank;
        options.world_size = kWorkers;
        Client client(options);
        SYNCGRADS_ASSERT_OK(client.Join(kTimeout));
        ClientTeam team(client, kTimeout);
        Recorder recorder(reported[rank]);
        std::optional<CheckpointWriter> writer;
        TrainerOptions trainer;
        trainer.step_timeout = kTimeout;
        trainer.progress = &recorder;
        trainer.resume = resume;
        trainer.note = [&](const std::string& line) { reported[rank].notes += line + "\n"; };
        if (job.file.has_checkpoint()) {
          writer.emplace(CheckpointOptionsOf(job));
          trainer.checkpoints = &*writer;
          // No checkpoint is left out because the one before is still being written.
          recorder.on_validated = [&](uint64_t) { SYNCGRADS_EXPECT_OK(writer->Finish(kTimeout)); };
        }
        const auto result = RunTraining(job, team, trainer, rank == 0 ? output : "");
        reported[rank].status = result.status();
        if (result.ok()) reported[rank].validation = result->validation;
        SYNCGRADS_EXPECT_OK(client.Leave(kTimeout));
      });
    }
    for (std::thread& thread : threads) thread.join();
    return reported;
  }

  std::string In(const std::string& name) { return absl::StrCat(directory_.path(), "/", name); }

  TemporaryDirectory directory_;
};

constexpr char kValData[] =
    "data { table { path: \"val.csv\" } target: \"class\" split: KEEP_REMAINDER }";

// The figures of the model in a file on the rows of a table, computed in plain loops.
struct Plain {
  double loss = 0;
  double top1 = 0;
  double top2 = 0;
};

std::vector<double> Numbers(const Safetensors& file, const std::string& name,
                            std::vector<int64_t> shape) {
  const auto bytes = file.Find({name, DType::kF64, std::move(shape)});
  SYNCGRADS_EXPECT_OK(bytes);
  std::vector<double> numbers(bytes->size() / sizeof(double));
  std::memcpy(numbers.data(), bytes->data(), bytes->size());
  return numbers;
}

Plain ComputePlainly(const std::string& model, const std::string& table) {
  const auto file = Safetensors::Read(model);
  SYNCGRADS_EXPECT_OK(file);
  const auto mean = Numbers(*file, "batch_norm1.running_mean", {4});
  const auto variance = Numbers(*file, "batch_norm1.running_var", {4});
  const auto weight = Numbers(*file, "batch_norm1.weight", {4});
  const auto shift = Numbers(*file, "batch_norm1.bias", {4});
  const auto kernel = Numbers(*file, "dense1/kernel", {4, 3});
  const auto bias = Numbers(*file, "dense1/bias", {3});
  const auto text = ReadFile(table, 1 << 20);
  SYNCGRADS_EXPECT_OK(text);
  const std::vector<std::string> lines = absl::StrSplit(*text, '\n', absl::SkipEmpty());
  std::set<std::string> names;
  for (size_t i = 1; i < lines.size(); ++i) {
    names.insert(std::vector<std::string>(absl::StrSplit(lines[i], ',')).back());
  }
  Plain plain;
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> cells = absl::StrSplit(lines[i], ',');
    const size_t target = std::distance(names.begin(), names.find(cells.back()));
    double outputs[3];
    double exponentials = 0;
    for (size_t k = 0; k < 3; ++k) {
      outputs[k] = bias[k];
      for (size_t f = 0; f < 4; ++f) {
        const double x = (std::stod(cells[f]) - mean[f]) / std::sqrt(variance[f] + 1e-5);
        outputs[k] += (x * weight[f] + shift[f]) * kernel[f * 3 + k];
      }
      exponentials += std::exp(outputs[k]);
    }
    plain.loss += std::log(exponentials) - outputs[target];
    int higher = 0;
    for (const double output : outputs) higher += output > outputs[target] ? 1 : 0;
    plain.top1 += higher < 1 ? 1 : 0;
    plain.top2 += higher < 2 ? 1 : 0;
  }
  const double rows = static_cast<double>(lines.size() - 1);
  return {plain.loss / rows, plain.top1 / rows, plain.top2 / rows};
}

TEST_F(ValidationTest, ItsFiguresAreThoseOfAPlainComputationWithTheModelThatIsWritten) {
  for (const char* place : {"WORKERS", "SERVERS"}) {
    const Job job = MakeJob(absl::StrCat("epochs: 3 optimizer_placement: ", place,
                                         " validation { top: 1 top: 2 ", kValData, " }"));
    const std::vector<Reported> reported = Train(job, false, In("model.safetensors"));
    const Plain plain = ComputePlainly(In("model.safetensors"), In("val.csv"));
    for (const Reported& one : reported) {
      SYNCGRADS_ASSERT_OK(one.status);
      EXPECT_EQ(one.validations, reported[0].validations);
      // 100 rows in shards of 34, 34 and 32: seven steps an epoch.
      ASSERT_EQ(one.validations.size(), 3u);
      EXPECT_EQ(one.validations[0].first, 7u);
      EXPECT_EQ(one.validations[1].first, 14u);
      const auto& [step, scores] = one.validations[2];
      EXPECT_EQ(step, 21u);
      ASSERT_EQ(scores.size(), 3u);
      EXPECT_EQ(scores[0].first, "val_loss");
      EXPECT_NEAR(scores[0].second, plain.loss, 1e-12);
      EXPECT_EQ(scores[1], std::make_pair(std::string("top1"), plain.top1));
      EXPECT_EQ(scores[2], std::make_pair(std::string("top2"), plain.top2));
      EXPECT_EQ(one.validation->rows, 31u);
    }
    EXPECT_LT(reported[0].validations[2].second[0].second,
              reported[0].validations[0].second[0].second);
  }
}

// A checkpoint has the mean in the model, and beside it those of each worker.
TEST_F(ValidationTest, TheRunningStatisticsThatAreWrittenAreTheMeanOverTheWorkers) {
  const Job job = MakeJob("steps: 6 checkpoint { directory: \"run\" every_steps: 6 }");
  for (const Reported& one : Train(job, false, In("model.safetensors"))) {
    SYNCGRADS_ASSERT_OK(one.status);
  }
  const auto file = Safetensors::Read(In("model.safetensors"));
  SYNCGRADS_ASSERT_OK(file);
  auto checkpoint = ReadCheckpoint(In("run") + "/latest");
  SYNCGRADS_ASSERT_OK(checkpoint);
  EXPECT_EQ(checkpoint->manifest.step, 6u);
  const auto snapshot = SnapshotOf(*std::move(checkpoint));
  SYNCGRADS_ASSERT_OK(snapshot);
  for (const std::string name : {"batch_norm1.running_mean", "batch_norm1.running_var"}) {
    const auto bytes = snapshot->Find({"states/" + name, DType::kF64, {kWorkers, 4}});
    SYNCGRADS_ASSERT_OK(bytes);
    std::vector<double> of_workers(kWorkers * 4);
    std::memcpy(of_workers.data(), bytes->data(), bytes->size());
    const std::vector<double> written = Numbers(*file, name, {4});
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_NE(of_workers[i], of_workers[4 + i]);
      double sum = 0;
      for (uint32_t rank = 0; rank < kWorkers; ++rank) sum += of_workers[rank * 4 + i];
      EXPECT_NEAR(written[i], sum / kWorkers, 1e-12) << name << " " << i;
    }
  }
}

TEST_F(ValidationTest, TheMovingAverageIsWhatIsValidatedAndWrittenUnlessTheJobSaysOtherwise) {
  for (const std::string place : {"WORKERS", "SERVERS"}) {
    const auto train = [&](const std::string& more, const std::string& output) {
      const std::vector<Reported> reported =
          Train(MakeJob(absl::StrCat("epochs: 3 optimizer_placement: ", place, " ", more,
                                     " validation { ", kValData, " }")),
                false, In(output));
      for (const Reported& one : reported) {
        SYNCGRADS_EXPECT_OK(one.status);
        EXPECT_EQ(one.validations, reported[0].validations);
      }
      return reported[0];
    };
    const Reported without = train("", "without");
    const Reported average = train("ema { decay: 0.8 }", "average");
    const Plain plain = ComputePlainly(In("average"), In("val.csv"));
    ASSERT_EQ(average.validations.size(), 3u);
    EXPECT_NEAR(average.validations[2].second[0].second, plain.loss, 1e-12);
    EXPECT_NE(average.validations, without.validations);
    const Reported beside = train("ema { decay: 0.8 model: PARAMETERS }", "parameters");
    EXPECT_EQ(beside.validations, without.validations);
    EXPECT_EQ(*ReadFile(In("parameters"), 1 << 20), *ReadFile(In("without"), 1 << 20));
  }
}

TEST_F(ValidationTest, WithoutASourceTheHeldOutRowsAreValidatedAlsoAfterTheLastStep) {
  Job job = MakeJob(absl::StrCat("steps: 10 validation { every_steps: 4 ", kValData, " }"));
  job.file.mutable_validation()->clear_data();
  job.file.mutable_data()->set_validation_every(4);
  for (const Reported& one : Train(job)) {
    SYNCGRADS_ASSERT_OK(one.status);
    std::vector<uint64_t> steps;
    for (const auto& [step, scores] : one.validations) steps.push_back(step);
    EXPECT_THAT(steps, ElementsAre(4, 8, 10));
    EXPECT_EQ(one.validation->rows, 26u);  // 9 + 9 + 8
  }
}

TEST_F(ValidationTest, AllWorkersStopAtTheSameStepForTheSameReason) {
  const Job job = MakeJob(absl::StrCat("epochs: 40 validation { every_steps: 3 ", kValData,
                                       " } early_stopping { patience: 2 min_delta: 100 }"));
  for (const Reported& one : Train(job)) {
    SYNCGRADS_ASSERT_OK(one.status);
    EXPECT_EQ(one.steps, 9u);
    EXPECT_THAT(one.stopped, HasSubstr("9: val_loss has not improved by more than 100 in 2 "
                                       "validations; the best, "));
    EXPECT_THAT(one.stopped, HasSubstr(", was after step 3"));
  }
}

TEST_F(ValidationTest, ARunThatIsResumedContinuesTheCount) {
  const auto job = [this](const std::string& name) {
    return MakeJob(absl::StrCat("epochs: 40 validation { every_steps: 2 ", kValData,
                                " } early_stopping { patience: 3 min_delta: 100 } checkpoint { "
                                "directory: \"",
                                name, "\" every_steps: 5 keep: 100 }"));
  };
  const std::vector<Reported> whole = Train(job("whole"));
  EXPECT_THAT(whole[0].stopped, HasSubstr("8: val_loss has not improved by more than 100 in 3 "));
  std::filesystem::create_directory(In("broken"));
  const CheckpointDirectory from({In("whole")}), to({In("broken")});
  std::filesystem::copy(from.PathOf(5), to.PathOf(5));
  for (const Reported& one : Train(job("broken"), /*resume=*/true)) {
    SYNCGRADS_ASSERT_OK(one.status);
    EXPECT_EQ(one.stopped, whole[0].stopped);
    EXPECT_EQ(one.validations.back(), whole[0].validations.back());
  }
  // A run that has ended does not go on.
  for (const Reported& one : Train(job("whole"), /*resume=*/true)) {
    SYNCGRADS_ASSERT_OK(one.status);
    EXPECT_EQ(one.steps, 0u);
  }
}

TEST_F(ValidationTest, ARunThatIsResumedWithAnotherMetricFindsTheBestAnew) {
  const auto job = [this](const std::string& stopping) {
    return MakeJob(absl::StrCat("epochs: 4 validation { every_steps: 2 ", kValData,
                                " } early_stopping { ", stopping,
                                " } checkpoint { directory: \"run\" every_steps: 5 }"));
  };
  for (const Reported& one : Train(job("metric: TOP1 patience: 1000"))) {
    SYNCGRADS_ASSERT_OK(one.status);
  }
  const CheckpointDirectory directory({In("run")});
  const absl::StatusOr<std::vector<uint64_t>> steps = directory.Steps();
  SYNCGRADS_ASSERT_OK(steps.status());
  for (const uint64_t step : *steps) {
    if (step != 5) std::filesystem::remove_all(directory.PathOf(step));
  }
  // The validation after step 6 is the first by this metric.
  for (const Reported& one : Train(job("metric: VAL_LOSS patience: 1"), /*resume=*/true)) {
    SYNCGRADS_ASSERT_OK(one.status);
    EXPECT_GT(one.steps, 6u) << one.stopped;
  }
}

// An epoch has seven steps with batches of 5 rows, and four with batches of 10 rows.
TEST_F(ValidationTest, ARunThatIsResumedWithAnotherBatchSizeIsValidatedWhenAnEpochEnds) {
  struct Case {
    int steps;  // before the resume
    int every_epochs;
    std::vector<uint64_t> validations;
  };
  // After 11 steps, 14 rows of the second epoch are left.
  const std::vector<Case> cases = {
      {14, 1, {18, 22}}, {14, 2, {22}}, {11, 1, {13, 17, 21}}, {11, 2, {13, 21}}};
  for (const Case& one : cases) {
    SCOPED_TRACE(absl::StrCat(one.steps, " steps, every ", one.every_epochs, " epochs"));
    const auto make = [&](const std::string& length, uint32_t batch_size) {
      Job job = MakeJob(absl::StrCat(length, " validation { every_epochs: ", one.every_epochs, " ",
                                     kValData, " } checkpoint { directory: \"run", one.steps, "-",
                                     one.every_epochs, "\" }"));
      job.file.set_batch_size(batch_size);
      return job;
    };
    for (const Reported& before : Train(make(absl::StrCat("steps: ", one.steps), 5))) {
      SYNCGRADS_ASSERT_OK(before.status);
    }
    for (const Reported& resumed : Train(make("epochs: 4", 10), /*resume=*/true)) {
      SYNCGRADS_ASSERT_OK(resumed.status);
      std::vector<uint64_t> steps;
      for (const auto& [step, scores] : resumed.validations) steps.push_back(step);
      EXPECT_EQ(steps, one.validations);
      EXPECT_EQ(resumed.steps, one.validations.back());
    }
  }
}

TEST_F(ValidationTest, TheBestCheckpointIsThatOfTheBestValidation) {
  // With a codec, the step before a checkpoint is sent uncompressed.
  for (const std::string compression :
       {"", "dtype: F32 compression { min_elements: 1 push { codec: INT8 } }"}) {
    const std::string name = compression.empty() ? "run" : "compressed";
    const Job job = MakeJob(absl::StrCat("epochs: 4 validation { every_steps: 3 ", kValData,
                                         " } checkpoint { directory: \"", name,
                                         "\" best: LOSS keep: 1 } ", compression),
                            /*rate=*/"0.4", compression.empty() ? "dtype: F64" : "");
    const std::vector<Reported> reported = Train(job);
    std::pair<double, uint64_t> best = {HUGE_VAL, 0};
    for (const auto& [step, scores] : reported[0].validations) {
      best = std::min(best, {scores[0].second, step});
    }
    const auto kept = ReadCheckpoint(In(name) + "/best");
    SYNCGRADS_ASSERT_OK(kept);
    EXPECT_EQ(kept->manifest.step, best.second);
    EXPECT_EQ(kept->manifest.evaluation.at("val_loss"), best.first);
    EXPECT_EQ(kept->manifest.score, -best.first);
  }
}

TEST_F(ValidationTest, TheBestCheckpointCanBeThatOfTheHighestAccuracy) {
  int differ = 0;
  for (const std::string rate : {"0.002", "0.01", "1"}) {
    const Job job =
        MakeJob(absl::StrCat("epochs: 4 validation { every_steps: 2 ", kValData,
                             " } checkpoint { directory: \"", rate, "\" best: ACCURACY keep: 1 }"),
                rate);
    const std::vector<Reported> reported = Train(job);
    std::pair<double, uint64_t> lowest_loss = {HUGE_VAL, 0};
    std::pair<double, uint64_t> highest = {-1, 0};
    for (const auto& [step, scores] : reported[0].validations) {
      ASSERT_EQ(scores[1].first, "top1");
      lowest_loss = std::min(lowest_loss, {scores[0].second, step});
      if (scores[1].second > highest.first) highest = {scores[1].second, step};
    }
    differ += highest.second != lowest_loss.second ? 1 : 0;
    const auto kept = ReadCheckpoint(In(rate + "/best"));
    SYNCGRADS_ASSERT_OK(kept);
    EXPECT_EQ(kept->manifest.step, highest.second) << rate;
    EXPECT_EQ(kept->manifest.score, highest.first) << rate;
  }
  EXPECT_GT(differ, 0) << "the loss would choose the same checkpoints";
}

TEST_F(ValidationTest, ASourceThatIsMissingOrDamagedIsNamed) {
  const Job job = MakeJob(absl::StrCat("epochs: 1 validation { ", kValData, " }"));
  std::filesystem::remove(In("val.csv"));
  for (const Reported& one : Train(job)) {
    ExpectError(one.status, absl::StatusCode::kNotFound, {"validation.data: ", "val.csv"});
  }
  directory_.Write("val.csv", "sepal_l,sepal_w,petal_l,petal_w,class\n1,2,x,4,Iris-setosa\n");
  for (const Reported& one : Train(job)) {
    ExpectError(one.status, absl::StatusCode::kInvalidArgument, {"validation.data: ", "val.csv"});
  }
}

// Each worker of an elastic job validates by itself.
TEST_F(ValidationTest, AWorkerThatIsLostInAValidationOfAnElasticJobIsNamedAndTheOthersGoOn) {
  const Job job =
      MakeJob(absl::StrCat("steps: 12 elastic {} validation { every_steps: 4 ", kValData, " }"));
  Job dynamic = job;
  dynamic.file.mutable_data()->set_mode(v1::DataSpec::DYNAMIC);
  const auto data = LoadWholeDataSet(dynamic, kWorkers, /*rank=*/0);
  SYNCGRADS_ASSERT_OK(data);
  SoleWorker alone;
  const auto validation = LoadValidationData(dynamic, *data, alone);
  SYNCGRADS_ASSERT_OK(validation);
  testing::Cluster cluster(2);
  std::vector<Reported> reported(kWorkers);
  std::vector<TrainingResult> results(kWorkers);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kWorkers; ++i) {
    threads.emplace_back([&, i] {
      ClientOptions options;
      options.coordinator = cluster.coordinator();
      options.job = job.file.name();
      options.name = absl::StrCat("worker-", i);
      options.world_size = kWorkers;
      options.max_workers = kWorkers;
      options.min_workers = 1;
      Client client(options);
      SYNCGRADS_ASSERT_OK(client.Join(kTimeout));
      ClientTeam team(client, kTimeout);
      Recorder recorder(reported[i]);
      TrainerOptions trainer;
      trainer.step_timeout = kTimeout;
      trainer.progress = &recorder;
      trainer.owners = kWorkers;
      trainer.validation = &**validation;
      trainer.note = [&](const std::string& line) { reported[i].notes += line + "\n"; };
      const bool is_lost = i + 1 == kWorkers;
      // The others begin the next step when the membership has changed.
      recorder.on_validated = [&, is_lost](uint64_t step) {
        if (is_lost) {
          client.Abandon();
        } else if (step == 4) {
          EXPECT_TRUE(testing::WaitUntil([&] { return client.world_size() < kWorkers; }));
        }
      };
      const auto result = RunElasticTraining(dynamic, *data, team, trainer, "");
      if (is_lost) return;
      SYNCGRADS_ASSERT_OK(result);
      results[i] = *result;
      SYNCGRADS_EXPECT_OK(client.Leave(kTimeout));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t i = 0; i + 1 < kWorkers; ++i) {
    EXPECT_EQ(results[i].steps, 12u);
    EXPECT_TRUE(results[i].replicas.identical());
    EXPECT_EQ(reported[i].validations.size(), 3u);
    // The membership may change some steps after the worker was lost.
    EXPECT_THAT(reported[i].notes, HasSubstr("gone since the validation after step "));
    EXPECT_THAT(reported[i].notes, HasSubstr(": worker-2"));
  }
}

}  // namespace
}  // namespace syncgrads
