// Jobs that use extensions which a program has added.

#include "worker/train/extensions.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "examples/own_loss/focal.h"
#include "examples/own_reader/libsvm.h"
#include "tests/worker/testing/fake_team.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/base/file.h"
#include "worker/train/run.h"

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

  // Trains with two workers and returns the result of rank 0.
  TrainingResult Train(const std::string& loss) {
    const auto job = Parse(loss);
    SYNCGRADS_EXPECT_OK(job);
    FakeJob workers(2);
    TrainingResult result;
    workers.Run([&](Team& team) {
      NoProgress progress;
      TrainerOptions options;
      options.progress = &progress;
      options.extensions = &extensions_;
      const auto trained = RunTraining(*job, team, options, Output(team));
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
    workers.Run([&](Team& team) {
      NoProgress progress;
      TrainerOptions options;
      options.progress = &progress;
      options.extensions = &extensions_;
      ExpectError(RunTraining(*job, team, options, ""), code, texts);
    });
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
  EXPECT_EQ(contents("saved.step10.safetensors"), contents("own.safetensors"));
  EXPECT_NE(contents("saved.step5.safetensors"), contents("own.safetensors"));
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

}  // namespace
}  // namespace syncgrads
