// The gradient engine alone: no other worker, no group, no mode.

#include "worker/trainer/gradient_engine.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/worker/testing/training.h"
#include "tests/worker/trainer/iris_run.h"
#include "worker/base/out_of_memory.h"
#include "worker/batches/own_rows.h"
#include "worker/nn/cpu/cpu_device.h"
#include "worker/nn/layers/custom_layers.h"
#include "worker/nn/models/build.h"

namespace syncgrads {
namespace {

// Forwards its input, but throws std::bad_alloc in the step `exhausted_in`.
template <typename T>
class Hungry : public Layer<T> {
 public:
  static absl::StatusOr<std::unique_ptr<Layer<T>>> Create(const CustomLayerOptions& options,
                                                          Device<T>& device) {
    return std::make_unique<Hungry>(options, device);
  }
  Hungry(const CustomLayerOptions& options, Device<T>& device)
      : Layer<T>(options.name, device, options.input, options.input),
        exhausted_in_(options.settings.at("exhausted_in")),
        output_(device) {}
  const DeviceMatrix<T>& Forward(const Pass& pass, const DeviceMatrix<T>& input) override {
    if (static_cast<double>(pass.step) == exhausted_in_) throw std::bad_alloc();
    output_.CopyFrom(input);
    return output_;
  }
  void Backward(const DeviceMatrix<T>&, DeviceMatrix<T>& output_gradient,
                DeviceMatrix<T>* input_gradient) override {
    if (input_gradient != nullptr) input_gradient->CopyFrom(output_gradient);
  }

 private:
  const double exhausted_in_;
  DeviceMatrix<T> output_;
};

// The events of a test, in order.
std::vector<std::string>& Events() {
  static auto& events = *new std::vector<std::string>();
  return events;
}

// Forwards its input and its gradient, and records its backward passes in Events().
template <typename T>
class Recorded : public Layer<T> {
 public:
  static absl::StatusOr<std::unique_ptr<Layer<T>>> Create(const CustomLayerOptions& options,
                                                          Device<T>& device) {
    return std::make_unique<Recorded>(options, device);
  }
  Recorded(const CustomLayerOptions& options, Device<T>& device)
      : Layer<T>(options.name, device, options.input, options.input), output_(device) {}
  const DeviceMatrix<T>& Forward(const Pass&, const DeviceMatrix<T>& input) override {
    output_.CopyFrom(input);
    return output_;
  }
  void Backward(const DeviceMatrix<T>&, DeviceMatrix<T>& output_gradient,
                DeviceMatrix<T>* input_gradient) override {
    Events().push_back("backward");
    if (input_gradient != nullptr) input_gradient->CopyFrom(output_gradient);
  }

 private:
  DeviceMatrix<T> output_;
};

// The rows of another source. Records in Events() which requests are made and taken.
class RecordedRows : public RowSource {
 public:
  explicit RecordedRows(std::unique_ptr<RowSource> rows) : rows_(std::move(rows)) {}
  absl::StatusOr<uint64_t> Ask(absl::Span<const RowId> rows, const ImageUse& use) override {
    Events().push_back(absl::StrCat("begin step ", use.step));
    return rows_->Ask(rows, use);
  }
  absl::StatusOr<RowBatch> Take(uint64_t asked) override {
    Events().push_back(absl::StrCat("take ", asked));
    return rows_->Take(asked);
  }
  bool IsRead(uint64_t asked) override { return rows_->IsRead(asked); }
  void Forget(uint64_t asked) override { rows_->Forget(asked); }
  void Reuse(std::string features) override { rows_->Reuse(std::move(features)); }

 private:
  const std::unique_ptr<RowSource> rows_;
};

std::vector<RowId> NoRows(size_t) { return {}; }
absl::StatusOr<bool> Waits() { return false; }

absl::StatusOr<double> Compute(IrisRun& iris, uint64_t step = 0) {
  const std::vector<RowId> rows = iris.run->batches->RowsFor(StepMembers());
  const auto nothing = [](size_t) { return absl::OkStatus(); };
  return iris.engine().Compute({step, rows, NoRows}, nothing, nothing, Waits);
}

TEST(GradientEngineTest, EachGradientIsReportedOnceLastLayerFirstAfterAllParametersWereNeeded) {
  for (const std::string more : {"", "micro_batches: 3"}) {
    SoleWorker team;
    IrisRun iris(IrisJob("layers { dense { outputs: 8 } }", more), team);
    const std::vector<RowId> rows = iris.run->batches->RowsFor(StepMembers());
    std::vector<size_t> needed, ready;
    SYNCGRADS_ASSERT_OK(iris.engine().Compute(
        {0, rows, NoRows},
        [&](size_t i) {
          needed.push_back(i);
          EXPECT_TRUE(ready.empty());
          return absl::OkStatus();
        },
        [&](size_t i) {
          ready.push_back(i);
          return absl::OkStatus();
        },
        Waits));
    EXPECT_EQ(needed.size(), more.empty() ? 4u : 12u);
    EXPECT_EQ(ready, std::vector<size_t>({2, 3, 0, 1}));
    EXPECT_EQ(iris.engine().last_batch(), 1u);
  }
}

TEST(GradientEngineTest, AGradientIsReportedBeforeTheLayersInFrontOfItAreComputed) {
  Extensions extensions;
  extensions.layers.Add<Recorded>("recorded");
  TrainerOptions options;
  options.extensions = &extensions;
  SoleWorker team;
  IrisRun iris(IrisJob("layers { dense { outputs: 8 } } layers { custom { kind: \"recorded\" } }"),
               team, options);
  const std::vector<RowId> rows = iris.run->batches->RowsFor(StepMembers());
  Events().clear();
  SYNCGRADS_ASSERT_OK(iris.engine().Compute(
      {0, rows, NoRows}, [](size_t) { return absl::OkStatus(); },
      [](size_t i) {
        Events().push_back(absl::StrCat("gradient ", i));
        return absl::OkStatus();
      },
      Waits));
  EXPECT_EQ(Events(), (std::vector<std::string>{"gradient 2", "gradient 3", "backward",
                                                "gradient 0", "gradient 1"}));
}

TEST(GradientEngineTest, TheNextTwoBatchesAreBegunBeforeABatchIsTaken) {
  SoleWorker team;
  IrisRun iris(IrisJob(""), team);
  CpuDevice<double> device(1);
  const auto model =
      BuildModel<double>(iris.job.file.model(), iris.data.shape, CustomLayers(), device);
  SYNCGRADS_ASSERT_OK(model);
  auto rows = std::make_unique<OwnRows>(iris.data, OwnRowsOptions{.dtype = v1::F64});
  const Loss loss;
  const auto engine =
      MakeGradientEngine<double>(*iris.run, **model, loss,
                                 std::make_unique<BatchReader<double>>(
                                     iris.data, std::make_unique<RecordedRows>(std::move(rows))));
  const auto nothing = [](size_t) { return absl::OkStatus(); };
  const auto rows_ahead = [&](size_t steps) { return iris.run->batches->RowsAhead(steps); };
  Events().clear();
  for (uint64_t step = 0; step < 2; ++step) {
    const std::vector<RowId> batch = iris.run->batches->RowsFor(StepMembers());
    SYNCGRADS_ASSERT_OK(engine->Compute({step, batch, rows_ahead}, nothing, nothing, Waits));
    iris.run->batches->Advance({});
  }
  EXPECT_EQ(Events(), (std::vector<std::string>{"begin step 0", "begin step 1", "begin step 2",
                                                "take 0", "begin step 3", "take 1"}));
}

TEST(GradientEngineTest, ABatchInPartsHasTheGradientAndTheLossOfTheWholeBatch) {
  SoleWorker team;
  const std::string layers = "layers { dense { outputs: 8 activation: TANH } }";
  IrisRun whole(IrisJob(layers), team);
  IrisRun parts(IrisJob(layers, "micro_batches: 5"), team);
  const auto loss = Compute(whole);
  const auto loss_of_parts = Compute(parts);
  SYNCGRADS_ASSERT_OK(loss);
  SYNCGRADS_ASSERT_OK(loss_of_parts);
  EXPECT_NEAR(*loss, *loss_of_parts, 1e-12);
  EXPECT_LT(LargestDifference(whole.Gradients(), parts.Gradients()), 1e-12);
}

TEST(GradientEngineTest, ThePenaltyIsInTheGradientAndInTheLoss) {
  SoleWorker team;
  IrisRun plain(IrisJob(""), team);
  Job penalised = IrisJob("");
  penalised.file.mutable_loss()->set_l2(0.5);
  IrisRun with(penalised, team);
  const auto loss = Compute(plain);
  const auto penalised_loss = Compute(with);
  SYNCGRADS_ASSERT_OK(penalised_loss);
  // The kernel is penalised; the bias, which comes last, is not.
  const HostParameter& kernel = with.replica().parameters()[0];
  const auto* const values = static_cast<const double*>(kernel.values);
  double sum = 0;
  for (size_t i = 0; i < kernel.gradient.elements; ++i) {
    EXPECT_NEAR(with.Gradients()[i], plain.Gradients()[i] + 0.5 * values[i], 1e-12);
    sum += values[i] * values[i];
  }
  EXPECT_EQ(with.Gradients().back(), plain.Gradients().back());
  EXPECT_NEAR(*penalised_loss, *loss + 0.25 * sum, 1e-12);
}

TEST(GradientEngineTest, AfterALackOfMemoryTheNextBatchIsComputedAsIfNothingHadHappened) {
  Extensions extensions;
  extensions.layers.Add<Hungry>("hungry");
  TrainerOptions options;
  options.extensions = &extensions;
  SoleWorker team;
  const std::string layers =
      "layers { custom { kind: \"hungry\" settings { key: \"exhausted_in\" value: 1 } } }";
  IrisRun usual(IrisJob(layers), team, options);
  IrisRun hungry(IrisJob(layers), team, options);
  const auto loss = Compute(usual, 2);
  SYNCGRADS_ASSERT_OK(loss);
  const auto refused = Compute(hungry, 1);
  EXPECT_TRUE(IsOutOfMemory(refused.status())) << refused.status();
  const auto again = Compute(hungry, 2);
  SYNCGRADS_ASSERT_OK(again);
  EXPECT_EQ(*again, *loss);
  EXPECT_EQ(hungry.Gradients(), usual.Gradients());
}

TEST(GradientEngineTest, TheErrorOfAHookIsReturnedAndNoOtherHookIsCalled) {
  SoleWorker team;
  IrisRun iris(IrisJob("layers { dense { outputs: 8 } }"), team);
  const std::vector<RowId> rows = iris.run->batches->RowsFor(StepMembers());
  int calls = 0;
  const auto refused = iris.engine().Compute(
      {0, rows, NoRows}, [](size_t) { return absl::OkStatus(); },
      [&](size_t) {
        ++calls;
        return absl::UnavailableError("gone");
      },
      Waits);
  EXPECT_EQ(refused.status(), absl::UnavailableError("gone"));
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace syncgrads
