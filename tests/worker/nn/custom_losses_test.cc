#include "worker/nn/custom_losses.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "examples/own_loss/focal.h"
#include "tests/worker/testing/status.h"
#include "worker/nn/cpu/cpu_device.h"
#include "worker/nn/layers/dense.h"
#include "worker/nn/loss.h"
#include "worker/nn/models/model.h"

namespace syncgrads {
namespace {

const Matrix<double> kOutputs{{0.5, -1, 2}, {3, 0.25, -0.5}, {-2, -2, 1}};
const std::vector<double> kTargets = {2, 1, 0};

std::unique_ptr<CustomLoss> MakeFocal(double gamma) {
  CustomLosses losses;
  losses.Add<Focal>("focal");
  auto made = losses.Create("focal", {3, {{"gamma", gamma}}});
  SYNCGRADS_EXPECT_OK(made);
  return *std::move(made);
}

TEST(CustomLossesTest, AnUnknownLossIsRefusedWithThoseThatThereAre) {
  ExpectError(NoCustomLosses().Create("focal", {}), absl::StatusCode::kInvalidArgument,
              {"unknown loss \"focal\"", "this program has no custom losses"});
  CustomLosses losses;
  losses.Add<Focal>("focal");
  losses.Add<Focal>("another");
  ExpectError(losses.Create("vocal", {}), absl::StatusCode::kInvalidArgument,
              {"unknown loss \"vocal\"", "this program has another, focal"});
  ExpectError(losses.Create("focal", {}), absl::StatusCode::kInvalidArgument, {"\"gamma\""});
}

TEST(CustomLossesTest, FocalWithoutAnExponentIsTheCrossEntropy) {
  Matrix<double> gradient = Matrix<double>::Zero(3, 3);
  Matrix<double> wanted;
  EXPECT_NEAR(MakeFocal(0)->Compute(kOutputs, kTargets, &gradient),
              SumOfLosses(Loss(), kOutputs, kTargets), 1e-12);
  LossGradient(Loss(), kOutputs, kTargets, 1, wanted);
  EXPECT_TRUE(gradient.isApprox(wanted, 1e-12)) << gradient;
}

TEST(CustomLossesTest, FocalsGradientIsThatOfItsLoss) {
  constexpr double kStep = 1e-6;
  const auto loss = MakeFocal(2);
  Matrix<double> gradient = Matrix<double>::Zero(3, 3);
  loss->Compute(kOutputs, kTargets, &gradient);
  for (Eigen::Index i = 0; i < kOutputs.size(); ++i) {
    Matrix<double> more = kOutputs, less = kOutputs;
    more.data()[i] += kStep;
    less.data()[i] -= kStep;
    const double slope =
        (loss->Compute(more, kTargets, nullptr) - loss->Compute(less, kTargets, nullptr)) /
        (2 * kStep);
    EXPECT_NEAR(gradient.data()[i], slope, 1e-8) << i;
  }
}

// A custom loss: (x - 1)^2 / 2 for each output. With `more_rows` its gradient has the wrong size.
class Halves : public CustomLoss {
 public:
  explicit Halves(Eigen::Index more_rows) : more_rows_(more_rows) {}
  double Compute(const Matrix<double>& outputs, absl::Span<const double>,
                 Matrix<double>* gradient) const override {
    if (gradient != nullptr) {
      *gradient = outputs.array() - 1;
      gradient->conservativeResize(outputs.rows() + more_rows_, outputs.cols());
    }
    return (outputs.array() - 1).square().sum() / 2;
  }

 private:
  const Eigen::Index more_rows_;
};

TEST(CustomLossesTest, AModelIsTrainedByTheLossDividedAsTheJobSays) {
  CpuDevice<float> device(1);
  std::vector<std::unique_ptr<Layer<float>>> layers;
  DenseOptions options;
  options.outputs = 1;
  layers.push_back(*Dense<float>::Create("dense", device, Shape::Flat(2), options));
  Model<float> model(
      std::make_unique<Chain<float>>("model", device, Shape::Flat(2), std::move(layers)));
  Parameter<float>& kernel = *model.parameters()[0];
  kernel.values << 1, 2;
  model.parameters()[1]->values.setZero();
  SYNCGRADS_ASSERT_OK(model.Upload());
  Loss loss;
  loss.custom = std::make_shared<Halves>(0);
  const Matrix<float> input{{1, 1}, {2, 0}};  // outputs 3 and 2
  const auto ready = [&](size_t i) {
    return model.device().memory().Wait(model.parameters()[i]->QueueGradient());
  };
  const auto needed = [](size_t) { return absl::OkStatus(); };
  SYNCGRADS_ASSERT_OK(
      model.ComputeGradients({true}, input, loss, {0, 0}, /*divisor=*/4, needed, ready));
  const auto value = model.TakeLoss();
  SYNCGRADS_ASSERT_OK(value);
  EXPECT_DOUBLE_EQ(*value, (4.0 / 2 + 1.0 / 2) / 4);
  EXPECT_DOUBLE_EQ(*model.TakeLoss(), 0);
  // The derivatives with respect to the outputs are 2/4 and 1/4.
  EXPECT_FLOAT_EQ(kernel.gradient.data()[0], 0.5 * 1 + 0.25 * 2);
  EXPECT_FLOAT_EQ(kernel.gradient.data()[1], 0.5 * 1);

  loss.custom = std::make_shared<Halves>(1);
  ExpectError(model.ComputeGradients({true}, input, loss, {0, 0}, 4, needed, ready),
              absl::StatusCode::kInvalidArgument, {"a gradient of 3x1", "outputs are 2x1"});
}

}  // namespace
}  // namespace syncgrads
