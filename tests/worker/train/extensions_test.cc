// Jobs that use extensions which a program has added.

#include "worker/train/extensions.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "examples/own_loss/focal.h"
#include "examples/own_reader/libsvm.h"
#include "tests/worker/testing/fake_team.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/base/file.h"
#include "worker/run/operations.h"

namespace syncgrads {
namespace {

class ExtensionsTest : public testing::Test {
 protected:
  ExtensionsTest() {
    extensions_.losses.Add<Focal>("focal");
    extensions_.readers.Add("libsvm", ReadLibsvm);
    std::string rows;
    for (int i = 0; i < 60; ++i) {
      absl::StrAppend(&rows, i % 3 == 0 ? "b" : "a", " 1:", (i * 7) % 11, " 2:", (i * 5) % 13,
                      "\n");
    }
    directory_.Write("rows.txt", rows);
  }

  absl::StatusOr<Job> Parse(const std::string& loss) {
    auto job = ParseJobFile(absl::StrCat(R"(
        name: "own" seed: 2 dtype: F64 batch_size: 5 epochs: 2
        data { custom { kind: "libsvm" settings { key: "path" value: "rows.txt" }
                                       settings { key: "features" value: "2" } }
               validation_every: 4 }
        model { layers { dense { outputs: 2 } } }
        optimizer { sgd { learning_rate: 0.01 } }
        loss { )",
                                         loss, " }"),
                            directory_.path() + "/own.job");
    if (job.ok()) job->readers = &extensions_.readers;
    return job;
  }

  // Trains with the extensions of this test.
  absl::StatusOr<TrainingResult> TrainAs(Team& team, const Job& job, const std::string& output) {
    NoProgress progress;
    TrainerOptions options;
    options.progress = &progress;
    options.extensions = &extensions_;
    return RunTraining(job, team, options, output);
  }

  // Trains with two workers and returns the result of rank 0.
  TrainingResult Train(const std::string& loss) {
    const auto job = Parse(loss);
    SYNCGRADS_EXPECT_OK(job);
    FakeJob workers(2);
    TrainingResult result;
    workers.Run([&](Team& team) {
      const auto trained = TrainAs(team, *job, Output(team));
      SYNCGRADS_ASSERT_OK(trained);
      if (team.is_master()) result = *trained;
    });
    return result;
  }

  void ExpectTrainingError(const std::string& loss, absl::StatusCode code,
                           std::initializer_list<std::string> texts) {
    const auto job = Parse(loss);
    SYNCGRADS_ASSERT_OK(job);
    FakeJob workers(1);
    workers.Run([&](Team& team) { ExpectError(TrainAs(team, *job, ""), code, texts); });
  }

  std::string Output(const Team& team) const {
    return team.is_master() ? directory_.path() + "/own.safetensors" : "";
  }

  TemporaryDirectory directory_;
  Extensions extensions_;
};

TEST_F(ExtensionsTest, AJobIsTrainedByALossAndAReaderOfOnesOwn) {
  const TrainingResult own =
      Train("custom { kind: \"focal\" settings { key: \"gamma\" value: 0 } }");
  const TrainingResult built_in = Train("logit_cross_entropy {}");
  ASSERT_TRUE(own.held_out.has_value());
  EXPECT_EQ(own.trained_on.rows, 44u);
  EXPECT_NEAR(own.held_out->loss, built_in.held_out->loss, 1e-9);
  EXPECT_EQ(own.held_out->correct, built_in.held_out->correct);
  EXPECT_TRUE(own.replicas.identical());
  // With gamma 2 the focal loss gives less weight to rows that are classified well, so its value is
  // smaller.
  const TrainingResult focal =
      Train("custom { kind: \"focal\" settings { key: \"gamma\" value: 2 } }");
  EXPECT_LT(focal.held_out->loss, own.held_out->loss / 1.5);
}

TEST_F(ExtensionsTest, WhatTheProgramDoesNotHaveIsRefused) {
  ExpectTrainingError("custom { kind: \"vocal\" }", absl::StatusCode::kInvalidArgument,
                      {"unknown loss \"vocal\"", "this program has focal"});
}

TEST_F(ExtensionsTest, CallbacksAreCalledAfterEachStepAndCanSaveTheModel) {
  std::vector<uint64_t> steps[2];
  extensions_.after_step.push_back([&](const MadeStep& made) {
    EXPECT_EQ(made.steps, 10u);
    EXPECT_EQ(made.world_size, 2u);
    EXPECT_TRUE(made.loss.has_value());
    steps[made.rank].push_back(made.step);
    return absl::OkStatus();
  });
  const std::string saved = directory_.path() + "/saved.safetensors";
  extensions_.after_step.push_back(SaveEvery(5, saved));
  const TrainingResult result = Train("logit_cross_entropy {}");
  EXPECT_EQ(steps[0], (std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(steps[1], steps[0]);
  const auto contents = [&](const std::string& name) {
    const auto bytes = ReadFile(directory_.path() + "/" + name, 1 << 20);
    SYNCGRADS_EXPECT_OK(bytes);
    return bytes.value_or("");
  };
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
    const std::string name = entry.path().filename();
    if (absl::StartsWith(name, "saved")) files.insert(name);
  }
  EXPECT_EQ(files, (std::set<std::string>{"saved.step10.safetensors", "saved.step5.safetensors"}));
  EXPECT_EQ(contents("saved.step10.safetensors"), contents("own.safetensors"));
  EXPECT_NE(contents("saved.step5.safetensors"), contents("own.safetensors"));
}

TEST_F(ExtensionsTest, OnlyRankZeroSavesTheModel) {
  for (const uint32_t rank : {0, 1}) {
    std::vector<std::string> saved;
    MadeStep made;
    made.rank = rank;
    made.world_size = 2;
    made.save = [&](const std::string& path) {
      saved.push_back(path);
      return absl::OkStatus();
    };
    const StepCallback callback = SaveEvery(3, "m.safetensors");
    for (made.step = 1; made.step <= 7; ++made.step) SYNCGRADS_ASSERT_OK(callback(made));
    EXPECT_EQ(saved, rank == 0
                         ? (std::vector<std::string>{"m.step3.safetensors", "m.step6.safetensors"})
                         : std::vector<std::string>());
  }
}

TEST_F(ExtensionsTest, AnErrorOfACallbackEndsTheTraining) {
  extensions_.after_step.push_back([](const MadeStep& made) {
    return made.step < 3 ? absl::OkStatus() : absl::OutOfRangeError("it is good enough");
  });
  ExpectTrainingError("logit_cross_entropy {}", absl::StatusCode::kOutOfRange,
                      {"it is good enough"});
}

TEST_F(ExtensionsTest, ALossWithoutAKindIsRefusedWithItsPlace) {
  ExpectError(Parse("custom {}"), absl::StatusCode::kInvalidArgument,
              {"loss.custom.kind", "missing"});
}

// Squared errors, weighted by the second of each row's targets.
class Weighted : public CustomLoss {
 public:
  static absl::StatusOr<std::unique_ptr<CustomLoss>> Create(const CustomLossOptions& options) {
    if (options.targets_per_row != 2) return absl::InvalidArgumentError("needs two targets");
    return std::make_unique<Weighted>();
  }
  double Compute(const Matrix<double>& outputs, absl::Span<const double> targets,
                 Matrix<double>* gradient) const override {
    double sum = 0;
    for (Eigen::Index row = 0; row < outputs.rows(); ++row) {
      const double error = outputs(row, 0) - targets[2 * static_cast<size_t>(row)];
      const double weight = targets[2 * static_cast<size_t>(row) + 1];
      sum += weight * error * error;
      if (gradient != nullptr) (*gradient)(row, 0) = 2 * weight * error;
    }
    return sum;
  }
};

TEST_F(ExtensionsTest, ACustomLossSeesTheFurtherColumnsOfTheBatch) {
  extensions_.losses.Add<Weighted>("weighted");
  std::string rows = "x,y,s\n";
  for (int i = 0; i < 20; ++i) {
    // Every second row is wrong, and has the weight 0.
    absl::StrAppend(&rows, i % 5, ",", i % 2 == 0 ? 3 * (i % 5) : 100, ",", i % 2 == 0 ? 1 : 0,
                    "\n");
  }
  directory_.Write("weighted.csv", rows);
  const auto parse = [&](const std::string& targets) {
    return ParseJobFile(absl::StrCat(R"(
        name: "weighted" seed: 2 dtype: F64 batch_size: 10 epochs: 1000
        data { table { path: "weighted.csv" } )",
                                     targets, R"( }
        model { layers { dense { outputs: 1 } } }
        optimizer { sgd { learning_rate: 0.05 } }
        loss { custom { kind: "weighted" targets: NUMBERS } })"),
                        directory_.path() + "/own.job");
  };
  const auto train = [&](const Job& job) {
    FakeJob workers(1);
    absl::StatusOr<TrainingResult> trained;
    workers.Run([&](Team& team) { trained = TrainAs(team, job, ""); });
    return trained;
  };
  const auto both = parse("target: \"y\" more_targets: \"s\"");
  SYNCGRADS_ASSERT_OK(both);
  const auto trained = train(*both);
  SYNCGRADS_ASSERT_OK(trained);
  EXPECT_EQ(trained->trained_on.rows, 20u);
  EXPECT_LT(trained->trained_on.loss, 1e-6);
  const auto one = parse("target: \"y\" features: \"x\"");
  SYNCGRADS_ASSERT_OK(one);
  ExpectError(train(*one), absl::StatusCode::kInvalidArgument, {"needs two targets"});
}

// `batches` batches of four points (x, 3 x). If `malformed` is set, the third lacks a target.
class Points : public BatchStream {
 public:
  Points(int batches, bool malformed) : batches_(batches), malformed_(malformed) {}

  absl::StatusOr<std::optional<StreamedBatch>> Next() override {
    if (made_ == batches_) return std::nullopt;
    StreamedBatch batch;
    for (int i = 0; i < 4; ++i) {
      batch.features.push_back((made_ + i) % 5);
      batch.targets.push_back(3 * ((made_ + i) % 5));
    }
    if (malformed_ && made_ == 2) batch.targets.pop_back();
    ++made_;
    return batch;
  }

 private:
  const int batches_;
  const bool malformed_;
  int made_ = 0;
};

class CountedSteps : public NoProgress {
 public:
  uint64_t steps() const { return steps_; }
  void Stepped(uint64_t step, std::optional<double>) override { steps_ = step; }

 private:
  uint64_t steps_ = 0;
};

class StreamTest : public ExtensionsTest {
 protected:
  StreamTest() {
    extensions_.readers.AddStream("points", [this](const BatchStreamOptions& options) {
      EXPECT_EQ(options.settings.at("a"), "b");
      EXPECT_EQ(options.features, 1u);
      return std::make_unique<Points>(batches_[options.rank], malformed_);
    });
  }

  absl::StatusOr<Job> ParseStream(const std::string& data, uint32_t steps) {
    auto job = ParseJobFile(absl::StrCat(R"(
        name: "stream" seed: 2 dtype: F64 batch_size: 4 steps: )",
                                         steps, R"(
        model { layers { dense { outputs: 1 } } }
        optimizer { sgd { learning_rate: 0.05 } }
        loss { squared_error {} }
        data { )",
                                         data, " }"),
                            directory_.path() + "/own.job");
    if (job.ok()) job->readers = &extensions_.readers;
    return job;
  }

  // Trains with as many workers as there are streams. Returns the result of rank 0, which writes
  // its model to `output`.
  absl::StatusOr<TrainingResult> TrainOn(const Job& job, const std::string& output) {
    FakeJob workers(static_cast<uint32_t>(batches_.size()));
    absl::StatusOr<TrainingResult> result;
    workers.Run([&](Team& team) {
      auto trained = TrainAs(team, job, team.is_master() ? output : "");
      if (team.is_master()) result = std::move(trained);
    });
    return result;
  }

  static constexpr char kStream[] =
      "custom { kind: \"points\" stream_features: 1 settings { key: \"a\" value: \"b\" } }";
  std::vector<int> batches_ = {5};  // of each worker
  bool malformed_ = false;
};

TEST_F(StreamTest, ATableAndAStreamOfTheSameBatchesGiveTheSameModel) {
  std::string rows = "x,y\n";
  for (int batch = 0; batch < 5; ++batch) {
    for (int i = 0; i < 4; ++i) {
      absl::StrAppend(&rows, (batch + i) % 5, ",", 3 * ((batch + i) % 5), "\n");
    }
  }
  directory_.Write("points.csv", rows);
  const auto stream = ParseStream(kStream, 1000);
  const auto table =
      ParseStream("table { path: \"points.csv\" } target: \"y\" order: AS_IN_SOURCE", 5);
  SYNCGRADS_ASSERT_OK(stream);
  SYNCGRADS_ASSERT_OK(table);
  const auto streamed = TrainOn(*stream, directory_.path() + "/stream");
  const auto read = TrainOn(*table, directory_.path() + "/table");
  SYNCGRADS_ASSERT_OK(streamed);
  SYNCGRADS_ASSERT_OK(read);
  EXPECT_EQ(streamed->steps, 5u);
  EXPECT_EQ(streamed->trained_on.rows, 0u);  // they are gone
  EXPECT_EQ(*ReadFile(directory_.path() + "/stream", 1 << 20),
            *ReadFile(directory_.path() + "/table", 1 << 20));
}

TEST_F(StreamTest, AWorkerWhoseStreamEndsFollowsTheOthersAndStepsAreTheLimit) {
  batches_ = {3, 7};
  const auto job = ParseStream(kStream, 1000);
  SYNCGRADS_ASSERT_OK(job);
  const auto all = TrainOn(*job, "");
  SYNCGRADS_ASSERT_OK(all);
  EXPECT_EQ(all->steps, 7u);
  EXPECT_TRUE(all->replicas.identical());
  const auto limited = TrainOn(*ParseStream(kStream, 4), "");
  SYNCGRADS_ASSERT_OK(limited);
  EXPECT_EQ(limited->steps, 4u);
}

// Makes two batches. The third call of Next returns when `stopped` is notified.
class Stalled : public BatchStream {
 public:
  explicit Stalled(absl::Notification& stopped) : stopped_(stopped) {}

  absl::StatusOr<std::optional<StreamedBatch>> Next() override {
    if (made_++ < 2) return StreamedBatch{{1}, {3}};
    stopped_.WaitForNotification();
    return std::nullopt;
  }

 private:
  absl::Notification& stopped_;
  int made_ = 0;
};

TEST_F(StreamTest, AWorkerThatWaitsForABatchCanBeStopped) {
  absl::Notification stopped;
  extensions_.readers.AddStream(
      "stalled", [&](const BatchStreamOptions&) { return std::make_unique<Stalled>(stopped); });
  const auto job = ParseStream("custom { kind: \"stalled\" stream_features: 1 }", 1000);
  SYNCGRADS_ASSERT_OK(job);
  FakeJob workers(1);
  workers.Run([&](Team& team) {
    CountedSteps progress;
    TrainerOptions options;
    options.progress = &progress;
    options.extensions = &extensions_;
    int calls = 0;
    options.should_stop = [&] {
      if (progress.steps() < 2) return false;
      // The first of these calls is that of the wait for the third batch.
      if (++calls == 2) stopped.Notify();
      return true;
    };
    ExpectError(RunTraining(*job, team, options, ""), absl::StatusCode::kCancelled,
                {"stopped by a signal after step 2"});
    if (calls < 2) stopped.Notify();
  });
}

TEST_F(StreamTest, WhatIsWrongIsNamed) {
  malformed_ = true;
  ExpectError(TrainOn(*ParseStream(kStream, 1000), ""), absl::StatusCode::kInvalidArgument,
              {"stream \"points\" made a batch of 4 numbers and 3 targets"});
  const auto other = ParseStream("custom { kind: \"lines\" stream_features: 1 }", 10);
  SYNCGRADS_ASSERT_OK(other);
  ExpectError(TrainOn(*other, ""), absl::StatusCode::kInvalidArgument,
              {"unknown stream \"lines\"", "this program has points"});
  ExpectError(ParseStream(kStream, 0), absl::StatusCode::kInvalidArgument, {"steps"});
  ExpectError(ParseStream(std::string(kStream) + " validation_every: 2", 9),
              absl::StatusCode::kInvalidArgument, {"data.custom.stream_features", "held-out"});
}

}  // namespace
}  // namespace syncgrads
