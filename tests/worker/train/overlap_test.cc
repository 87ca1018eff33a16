// Overlap: each result is taken when the next step's forward pass needs it. The tests check the
// order of these waits, and that nothing else changes. A fake service delivers the results one by
// one.

#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/worker/testing/fake_team.h"
#include "tests/worker/testing/status.h"
#include "worker/job/job_file.h"
#include "worker/nn/layers/custom_layers.h"
#include "worker/trainer/trainer.h"

namespace syncgrads {
namespace {

using testing::ElementsAre;

// The events on rank 0, in order.
std::vector<std::string>& Events() {
  static auto& events = *new std::vector<std::string>();
  return events;
}

// A layer that forwards its input and records its steps in Events(). In step `exhausted_in` it
// throws std::bad_alloc, on rank 0 only.
template <typename T>
class Probe : public Layer<T> {
 public:
  static absl::StatusOr<std::unique_ptr<Layer<T>>> Create(const CustomLayerOptions& options,
                                                          Device<T>& device) {
    return std::make_unique<Probe>(options, device);
  }
  Probe(const CustomLayerOptions& options, Device<T>& device)
      : Layer<T>(options.name, device, options.input, options.input), output_(device) {
    const auto exhausted = options.settings.find("exhausted_in");
    if (exhausted != options.settings.end()) exhausted_in_ = exhausted->second;
  }

  const DeviceMatrix<T>& Forward(const Pass& pass, const DeviceMatrix<T>& input) override {
    if (pass.training && pass.member == 0) {
      Events().push_back(absl::StrCat("step ", pass.step + 1, ": ", this->name()));
      if (static_cast<double>(pass.step) == exhausted_in_) throw std::bad_alloc();
    }
    output_.CopyFrom(input);
    return output_;
  }
  void Backward(const DeviceMatrix<T>&, DeviceMatrix<T>& output_gradient,
                DeviceMatrix<T>* input_gradient) override {
    if (input_gradient != nullptr) input_gradient->CopyFrom(output_gradient);
  }

 private:
  double exhausted_in_ = -1;
  DeviceMatrix<T> output_;
};

Job Parse(const std::string& more) {
  auto job = LoadJobFile("examples/iris/iris.job");
  EXPECT_TRUE(job.ok()) << job.status();
  job->file.clear_model();
  job->file.clear_optimizer();
  job->file.set_epochs(2);
  EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(absl::StrCat(R"(model {
                        layers { name: "front" custom { kind: "probe" } }
                        layers { name: "dense1" dense { outputs: 5 activation: TANH } }
                        layers { name: "back" custom { kind: "probe" } }
                        layers { name: "dense2" dense { outputs: 3 } }
                      } )",
                                                                         more),
                                                            &job->file));
  return *job;
}

struct Ended {
  absl::Status status;
  uint64_t steps = 0;
  SkippedSteps skipped;
  std::vector<float> parameters;
  std::optional<Snapshot> state;
};

// Trains and returns what each worker ended with. If `wait` is set, results are delivered one by
// one. From step 4 on, the job's learning rate factor is `rate_factor`.
std::vector<Ended> Train(const Job& job, uint32_t world_size, const FakeJob::OnWait& wait,
                         double rate_factor = 1) {
  Events().clear();
  FakeJob workers(world_size);
  workers.SetRateFactor(4, rate_factor);
  if (wait) workers.AnswerOneByOne(wait);
  Extensions extensions;
  extensions.layers.Add<Probe>("probe");
  std::vector<Ended> ended(world_size);
  workers.Run([&](Team& team) {
    NoProgress progress;
    TrainerOptions options;
    options.progress = &progress;
    options.extensions = &extensions;
    const auto data = LoadDataSet(job, DataSetOptions(), team);
    SYNCGRADS_ASSERT_OK(data);
    const auto trainer = Trainer::Create(job, *data, team, options);
    SYNCGRADS_ASSERT_OK(trainer);
    Ended& mine = ended[team.rank()];
    mine.status = (*trainer)->Train();
    mine.steps = (*trainer)->steps();
    mine.skipped = (*trainer)->skipped();
    for (const HostParameter& parameter : (*trainer)->replica().parameters()) {
      const auto* const values = static_cast<const float*>(parameter.values);
      mine.parameters.insert(mine.parameters.end(), values, values + parameter.gradient.elements);
    }
    mine.state = (*trainer)->KeepState();
  });
  return ended;
}

absl::Status Tell(uint32_t rank, uint64_t step, TensorId tensor) {
  if (rank == 0) Events().push_back(absl::StrCat("result ", ToNumber(tensor), " of step ", step));
  return absl::OkStatus();
}

constexpr char kAdam[] = "optimizer { adam { learning_rate: 0.01 } } ";

TEST(OverlapTest, AResultIsWaitedForWhenALayerNeedsIt) {
  const Job job = Parse(kAdam);
  const std::vector<Ended> ended = Train(job, 1, Tell);
  SYNCGRADS_ASSERT_OK(ended[0].status);
  ASSERT_GE(Events().size(), 14u);
  Events().resize(14);
  EXPECT_THAT(Events(), ElementsAre("step 1: front", "step 1: back",                              //
                                    "step 2: front", "result 0 of step 1", "result 1 of step 1",  //
                                    "step 2: back", "result 2 of step 1", "result 3 of step 1",   //
                                    "step 3: front", "result 0 of step 2", "result 1 of step 2",  //
                                    "step 3: back", "result 2 of step 2", "result 3 of step 2"));
}

// The cases have parameters that workers update, parameters that servers update, and work that has
// to be done between two steps.
TEST(OverlapTest, NothingElseBecomesOfAnyWorker) {
  for (const std::string more :
       {"", "optimizer_placement: SERVERS", "micro_batches: 2 loss { l2: 0.01 }",
        "optimizer_placement: SERVERS loss { l2: 0.01 } weight_by_samples: true",
        "check_replicas_every: 3", "clip_norm: 0.1",
        "schedule { step { milestones: 3 factor: 0.1 } }",
        "gradient_checks { outlier_factor: 100 }"}) {
    const Job job = Parse(absl::StrCat(kAdam, more));
    const std::vector<Ended> usual = Train(job, 2, nullptr);
    const std::vector<Ended> overlapping = Train(job, 2, Tell);
    for (size_t rank = 0; rank < usual.size(); ++rank) {
      SYNCGRADS_ASSERT_OK(usual[rank].status);
      SYNCGRADS_ASSERT_OK(overlapping[rank].status);
      EXPECT_EQ(overlapping[rank].steps, usual[rank].steps) << more;
      EXPECT_EQ(overlapping[rank].parameters, usual[rank].parameters) << more;
    }
  }
}

TEST(OverlapTest, AResultIsAppliedWithTheLearningRateFactorOfItsStep) {
  // Steps of a schedule count from 0.
  const Job scheduled =
      Parse(absl::StrCat(kAdam, "schedule { step { milestones: 3 factor: 0.1 } }"));
  const std::vector<Ended> expected = Train(scheduled, 2, nullptr);
  const Job job = Parse(kAdam);
  EXPECT_NE(Train(job, 2, nullptr)[0].parameters, expected[0].parameters);
  for (const FakeJob::OnWait& wait : {FakeJob::OnWait(), FakeJob::OnWait(Tell)}) {
    const std::vector<Ended> ended = Train(job, 2, wait, 0.1);
    for (size_t rank = 0; rank < ended.size(); ++rank) {
      EXPECT_EQ(ended[rank].parameters, expected[rank].parameters);
      EXPECT_EQ(ended[rank].state->manifest.learning_rate_factor, 0.1);
    }
  }
}

TEST(OverlapTest, AWorkerWithoutMemoryHalfWaySkipsTheStepAndHasAllOfTheOneBefore) {
  Job job = Parse(kAdam);
  (*job.file.mutable_model()
        ->mutable_layers(2)
        ->mutable_custom()
        ->mutable_settings())["exhausted_in"] = 4;
  const std::vector<Ended> usual = Train(job, 2, nullptr);
  const std::vector<Ended> overlapping = Train(job, 2, Tell);
  for (size_t rank = 0; rank < usual.size(); ++rank) {
    SYNCGRADS_ASSERT_OK(overlapping[rank].status);
    EXPECT_EQ(overlapping[rank].skipped.out_of_memory, rank == 0 ? 1u : 0u);
    EXPECT_EQ(overlapping[rank].parameters, usual[rank].parameters);
  }
  EXPECT_EQ(overlapping[0].parameters, overlapping[1].parameters);
}

TEST(OverlapTest, WhereResultsAreLostHalfWayTheStateIsThatOfTheStepBefore) {
  const Job job = Parse(kAdam);
  const auto train_until = [&job](uint32_t lost) {
    return Train(job, 1, [lost](uint32_t, uint64_t step, TensorId tensor) {
      if (step < 3 || ToNumber(tensor) < lost) return absl::OkStatus();
      return absl::UnavailableError("gone");
    })[0];
  };
  const Ended before = train_until(0);
  const Ended half_way = train_until(3);
  for (const Ended& ended : {before, half_way}) {
    EXPECT_EQ(ended.status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ended.steps, 2u);
    ASSERT_TRUE(ended.state.has_value());
  }
  EXPECT_NE(half_way.parameters, before.parameters) << "three results were taken";
  for (const auto* tensors : {&before.state->model, &before.state->training}) {
    for (const SavedTensor& tensor : *tensors) {
      const auto found = half_way.state->Find(tensor.spec);
      EXPECT_TRUE(found.ok() && *found == tensor.bytes) << tensor.spec.name;
    }
  }
}

}  // namespace
}  // namespace syncgrads
