// Steps that fail on one worker, and checks between steps. A fake replaces the service.

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/worker/testing/fake_team.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/job/job_file.h"
#include "worker/nn/layers/custom_layers.h"
#include "worker/trainer/trainer.h"

namespace syncgrads {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;

// A layer that forwards its input and gradient. On the rank `rank`, in the steps from `from` to
// before `to` (counted from 0), it does harm: it throws std::bad_alloc in the forward or the
// backward pass, or multiplies the gradient by `factor`.
template <typename T>
class Saboteur : public Layer<T> {
 public:
  static absl::StatusOr<std::unique_ptr<Layer<T>>> Create(const CustomLayerOptions& options,
                                                          Device<T>& device) {
    return std::make_unique<Saboteur>(options, device);
  }
  Saboteur(const CustomLayerOptions& options, Device<T>& device)
      : Layer<T>(options.name, device, options.input, options.input),
        settings_(options.settings),
        output_(device) {}

  const DeviceMatrix<T>& Forward(const Pass& pass, const DeviceMatrix<T>& input) override {
    acts_ = pass.training && static_cast<double>(pass.member) == settings_.at("rank") &&
            static_cast<double>(pass.step) >= settings_.at("from") &&
            static_cast<double>(pass.step) < settings_.at("to");
    if (acts_ && settings_.count("forward") > 0) throw std::bad_alloc();
    output_.Resize(input.rows(), input.cols());
    output_.host() = input.host();
    return output_;
  }

  void Backward(const DeviceMatrix<T>&, DeviceMatrix<T>& output_gradient,
                DeviceMatrix<T>* input_gradient) override {
    if (acts_ && settings_.count("backward") > 0) throw std::bad_alloc();
    if (input_gradient == nullptr) return;
    input_gradient->Resize(output_gradient.rows(), output_gradient.cols());
    input_gradient->host() = output_gradient.host();
    const auto factor = settings_.find("factor");
    if (acts_ && factor != settings_.end()) {
      input_gradient->host() *= static_cast<T>(factor->second);
    }
  }

 private:
  const std::map<std::string, double> settings_;
  bool acts_ = false;
  DeviceMatrix<T> output_;
};

// The result of one worker.
struct Ended {
  absl::Status status;
  uint64_t steps = 0;
  SkippedSteps skipped;
  std::vector<std::string> warnings;
  std::vector<double> parameters;
  // The updates of the first parameter that the optimizer has counted.
  uint64_t updates = 0;
};

std::vector<Ended> Train(const Job& job, FakeJob& workers, uint32_t world_size) {
  Extensions extensions;
  extensions.layers.Add<Saboteur>("saboteur");
  std::vector<Ended> ended(world_size);
  workers.Run([&](Team& team) {
    Ended& mine = ended[team.rank()];
    NoProgress progress;
    TrainerOptions options;
    options.progress = &progress;
    options.extensions = &extensions;
    options.warn = [&mine](const std::string& line) { mine.warnings.push_back(line); };
    const auto data = LoadDataSet(job, DataSetOptions(), team);
    SYNCGRADS_ASSERT_OK(data);
    const auto trainer = Trainer::Create(job, *data, team, options);
    SYNCGRADS_ASSERT_OK(trainer);
    mine.status = (*trainer)->Train();
    mine.steps = (*trainer)->steps();
    mine.skipped = (*trainer)->skipped();
    mine.updates = (*trainer)->replica().updates(0);
    for (const HostParameter& parameter : (*trainer)->replica().parameters()) {
      const auto* const values = static_cast<const double*>(parameter.values);
      mine.parameters.insert(mine.parameters.end(), values, values + parameter.gradient.elements);
    }
  });
  return ended;
}

std::vector<Ended> Train(const Job& job, uint32_t world_size) {
  FakeJob workers(world_size);
  return Train(job, workers, world_size);
}

// Makes the Iris job with 20 steps and a saboteur before the last layer.
Job SabotagedIris(const std::string& settings, const std::string& job = "") {
  std::string layer = "layers { custom { kind: \"saboteur\" ";
  for (const absl::string_view setting : absl::StrSplit(settings, ' ')) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(setting, '=');
    absl::StrAppend(&layer, "settings { key: \"", pair.first, "\" value: ", pair.second, " } ");
  }
  auto parsed = ParseJobFile(absl::StrCat(R"(
          name: "iris" seed: 1 dtype: F64 batch_size: 8 steps: 20
          data { table { path: "iris.csv" } target: "class" shards: 3 }
          model { layers { dense { outputs: 8 activation: TANH } } )",
                                          layer, R"( } } layers { dense { outputs: 3 } } }
          loss { logit_cross_entropy {} }
          optimizer { sgd { learning_rate: 0.1 } } )",
                                          job),
                             "examples/iris/x.job");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *parsed;
}

void ExpectAllTrained(const std::vector<Ended>& ended) {
  for (const Ended& one : ended) {
    SYNCGRADS_EXPECT_OK(one.status);
    EXPECT_EQ(one.steps, 20u);
    EXPECT_EQ(one.parameters, ended[0].parameters);
  }
}

TEST(OutOfMemoryTest, TheWorkerSkipsTheStepCountsItAndSaysSo) {
  const std::vector<Ended> ended = Train(SabotagedIris("rank=1 from=4 to=7 forward=1"), 3);
  ExpectAllTrained(ended);
  EXPECT_EQ(ended[1].skipped.out_of_memory, 3u);
  ASSERT_THAT(ended[1].warnings, SizeIs(3));
  EXPECT_THAT(ended[1].warnings[0],
              AllOf(HasSubstr("step 5 is skipped"), HasSubstr("out of memory")));
  EXPECT_EQ(ended[0].skipped.total() + ended[2].skipped.total(), 0u);
  // The skipped contributions are missing: the parameters differ from those without a saboteur.
  EXPECT_NE(ended[0].parameters, Train(SabotagedIris("rank=1 from=0 to=0"), 3)[0].parameters);
}

TEST(OutOfMemoryTest, AStepToWhichNobodyContributesChangesNoParameter) {
  // To be clipped, results are copied to the worker's gradients; otherwise they stay in place.
  for (const std::string more : {"", "clip_norm: 1000"}) {
    Job job = SabotagedIris("rank=0 from=12 to=20 forward=1", more);
    job.file.mutable_optimizer()->mutable_adam()->set_learning_rate(0.01);
    const std::vector<Ended> ended = Train(job, 1);
    ExpectAllTrained(ended);
    EXPECT_EQ(ended[0].skipped.out_of_memory, 8u);
    EXPECT_EQ(ended[0].updates, 12u) << more;
    job.file.set_steps(12);
    EXPECT_EQ(ended[0].parameters, Train(job, 1)[0].parameters) << more;
  }
}

TEST(OutOfMemoryTest, InTheBackwardPassWhatWasPushedCountsAndTheRestIsSkipped) {
  // The gradients of the last layer are pushed before the backward pass reaches the saboteur.
  const std::vector<Ended> ended = Train(SabotagedIris("rank=0 from=4 to=5 backward=1"), 3);
  ExpectAllTrained(ended);
  EXPECT_EQ(ended[0].skipped.out_of_memory, 1u);
}

TEST(OutOfMemoryTest, OfABatchInPartsTheStepIsSkippedAsAWhole) {
  // The saboteur counts parts, not steps: step 3 (counted from 0) has the parts 6 and 7.
  const std::vector<Ended> ended =
      Train(SabotagedIris("rank=0 from=7 to=8 forward=1", "micro_batches: 2"), 3);
  ExpectAllTrained(ended);
  EXPECT_EQ(ended[0].skipped.out_of_memory, 1u);
}

TEST(OutOfMemoryTest, WithoutEndIsAnError) {
  const std::vector<Ended> ended =
      Train(SabotagedIris("rank=0 from=4 to=99 forward=1", "max_skips_in_a_row: 3"), 1);
  ExpectError(ended[0].status, absl::StatusCode::kResourceExhausted,
              {"4 steps in a row", "up to step 8", "out of memory"});
}

// The saboteur acts in steps 12 and 13 (counted from 0), when the norms of earlier steps are known.
constexpr char kLong[] = "rank=2 from=12 to=14 factor=1000";

TEST(OutlierTest, IsSkippedByItsWorkerAlone) {
  for (const std::string place : {"optimizer_placement: WORKERS", "optimizer_placement: SERVERS"}) {
    const Job job = SabotagedIris(
        kLong, absl::StrCat("gradient_checks { outlier_factor: 20 outliers: SKIP } ", place));
    const std::vector<Ended> ended = Train(job, 3);
    ExpectAllTrained(ended);
    EXPECT_EQ(ended[2].skipped.outliers, 2u) << place;
    EXPECT_EQ(ended[0].skipped.total() + ended[1].skipped.total(), 0u) << place;
    EXPECT_THAT(ended[2].warnings[0], HasSubstr("times the median")) << place;
    // The result is the same if the worker skips the step for another reason.
    EXPECT_EQ(ended[0].parameters,
              Train(SabotagedIris("rank=2 from=12 to=14 forward=1", place), 3)[0].parameters)
        << place;
  }
}

TEST(OutlierTest, IsAnErrorOfItsWorkerUnlessTheJobSaysOtherwise) {
  for (const std::string place : {"optimizer_placement: WORKERS", "optimizer_placement: SERVERS"}) {
    const std::vector<Ended> ended =
        Train(SabotagedIris("rank=0 from=12 to=14 factor=1000",
                            absl::StrCat("gradient_checks { outlier_factor: 20 } ", place)),
              1);
    ExpectError(ended[0].status, absl::StatusCode::kInvalidArgument,
                {"step 13", "times the median"});
    EXPECT_EQ(ended[0].steps, 12u) << place;
  }
}

TEST(OutlierTest, IsPushedWhereTheJobAllowsIt) {
  const Job allowing =
      SabotagedIris(kLong, "gradient_checks { outlier_factor: 20 outliers: ALLOW } clip_norm: 1");
  const std::vector<Ended> ended = Train(allowing, 3);
  ExpectAllTrained(ended);
  EXPECT_EQ(ended[0].parameters, Train(SabotagedIris(kLong, "clip_norm: 1"), 3)[0].parameters);
}

TEST(OutlierTest, AGradientThatIsNotFiniteIsSkippedAsAWhole) {
  const std::vector<Ended> ended =
      Train(SabotagedIris("rank=2 from=3 to=4 factor=nan",
                          "gradient_checks { outlier_factor: 20 non_finite: SKIP }"),
            3);
  ExpectAllTrained(ended);
  EXPECT_EQ(ended[2].skipped.non_finite, 1u);
  EXPECT_EQ(ended[0].parameters,
            Train(SabotagedIris("rank=2 from=3 to=4 forward=1"), 3)[0].parameters);
}

TEST(OutlierTest, AGradientThatIsNotFiniteIsNamed) {
  const std::vector<Ended> ended = Train(
      SabotagedIris("rank=0 from=3 to=4 factor=nan", "gradient_checks { outlier_factor: 20 }"), 1);
  ExpectError(ended[0].status, absl::StatusCode::kInvalidArgument,
              {"step 4", "\"dense1/kernel\" is nan at index 0"});
}

// The example of trainer_test: gradients of -10 and -6 at parameters of 0.
TEST(ClippingTest, IsTheWorkedExample) {
  const TemporaryDirectory directory;
  directory.Write("t.csv", "x,y\n1,2\n2,4\n");
  const auto train = [&](const std::string& clip) {
    auto job = ParseJobFile(absl::StrCat(R"(
            name: "clip" dtype: F64 batch_size: 2 steps: 1
            data { table { path: "t.csv" } target: "y" order: AS_IN_SOURCE }
            model { layers { dense { outputs: 1 initialisation: ZEROS } } }
            loss { squared_error {} }
            optimizer { sgd { learning_rate: 0.1 } } )",
                                         clip),
                            directory.path() + "/x.job");
    EXPECT_TRUE(job.ok()) << job.status();
    return Train(*job, 1)[0].parameters;
  };
  const double norm = std::sqrt(136.0);
  EXPECT_THAT(train(""), testing::Pointwise(testing::DoubleNear(1e-12), {1.0, 0.6}));
  EXPECT_THAT(train("clip_norm: 12"), testing::Pointwise(testing::DoubleNear(1e-12), {1.0, 0.6}));
  EXPECT_THAT(train("clip_norm: 2"), testing::Pointwise(testing::DoubleNear(1e-12),
                                                        {0.1 * 10 * 2 / norm, 0.1 * 6 * 2 / norm}));
}

TEST(ClippingTest, WorkersTogetherEqualOneWithTheWholeBatch) {
  const std::string healthy = "rank=9 from=0 to=0";
  for (const std::string optimizer :
       {"sgd { learning_rate: 0.5 }", "lion { learning_rate: 0.01 }",
        "lamb { learning_rate: 0.05 }", "lars { learning_rate: 5 weight_decay: 0.01 }"}) {
    Job job = SabotagedIris(healthy, "clip_norm: 0.3");
    job.file.mutable_optimizer()->Clear();
    ASSERT_TRUE(
        google::protobuf::TextFormat::ParseFromString(optimizer, job.file.mutable_optimizer()));
    Job whole = job;
    whole.file.set_batch_size(24);
    const std::vector<Ended> three = Train(job, 3);
    ExpectAllTrained(three);
    const std::vector<double> one = Train(whole, 1)[0].parameters;
    const std::vector<double> start = Train(SabotagedIris(healthy, ""), 1)[0].parameters;
    double largest = 0, moved = 0;
    for (size_t i = 0; i < one.size(); ++i) {
      largest = std::max(largest, std::fabs(one[i] - three[0].parameters[i]));
      moved = std::max(moved, std::fabs(one[i] - start[i]));
    }
    EXPECT_LT(largest, 1e-9) << optimizer;
    EXPECT_GT(moved, 1e-3) << optimizer;
  }
}

TEST(ReplicaCheckTest, AWorkerThatDiffersIsNamedAtTheNextCheck) {
  FakeJob workers(3);
  workers.CorruptResultsOf(1);
  const std::vector<Ended> ended =
      Train(SabotagedIris("rank=9 from=0 to=0", "check_replicas_every: 5"), workers, 3);
  for (const Ended& one : ended) {
    ExpectError(one.status, absl::StatusCode::kDataLoss,
                {"after step 5", "the 3 replicas differ", "dense1/kernel on worker 1"});
  }
}

TEST(ReplicaCheckTest, EqualReplicasTrainAsWithoutIt) {
  const std::vector<Ended> ended =
      Train(SabotagedIris("rank=9 from=0 to=0", "check_replicas_every: 3"), 3);
  ExpectAllTrained(ended);
  EXPECT_EQ(ended[0].parameters, Train(SabotagedIris("rank=9 from=0 to=0"), 3)[0].parameters);
}

}  // namespace
}  // namespace syncgrads
