#include "worker/nn/models/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/worker/testing/status.h"
#include "worker/base/random.h"
#include "worker/nn/cpu/cpu_device.h"
#include "worker/nn/layers/dense.h"
#include "worker/nn/layers/min_max_scaling.h"
#include "worker/nn/loss.h"

namespace syncgrads {
namespace {

constexpr int kRows = 7;
constexpr int kFeatures = 4;
constexpr int kClasses = 3;

template <typename T>
CpuDevice<T>& OneThread() {
  static auto& device = *new CpuDevice<T>(1);
  return device;
}

template <typename T>
std::unique_ptr<Layer<T>> MakeDense(const std::string& name, int64_t inputs, int64_t outputs,
                                    Activation activation) {
  DenseOptions options;
  options.outputs = outputs;
  options.activation = activation;
  return *Dense<T>::Create(name, OneThread<T>(), Shape::Flat(inputs), options);
}

// Makes a model that has a layer with each activation.
template <typename T>
std::unique_ptr<Model<T>> MakeModel(uint64_t seed) {
  auto scaling =
      std::make_unique<MinMaxScaling<T>>("min_max_scaling", OneThread<T>(), Shape::Flat(kFeatures));
  scaling->SetRanges({-1, -2, -1, 0}, {1, 2, 0.5, 0});
  std::vector<std::unique_ptr<Layer<T>>> layers;
  layers.push_back(std::move(scaling));
  layers.push_back(MakeDense<T>("dense1", kFeatures, 6, Activation::kTanh));
  layers.push_back(MakeDense<T>("dense2", 6, 5, Activation::kSigmoid));
  layers.push_back(MakeDense<T>("dense3", 5, 5, Activation::kRelu));
  layers.push_back(MakeDense<T>("dense4", 5, kClasses, Activation::kIdentity));
  auto model = std::make_unique<Model<T>>(std::make_unique<Chain<T>>(
      "model", OneThread<T>(), Shape::Flat(kFeatures), std::move(layers)));
  model->Initialise(seed);
  return model;
}

template <typename T>
Matrix<T> MakeInput() {
  Matrix<T> input(kRows, kFeatures);
  RandomStream random(5, {});
  for (int i = 0; i < input.size(); ++i) {
    input.data()[i] = static_cast<T>(2 * random.NextUniform() - 1);
  }
  return input;
}

const std::vector<double>& Targets() {
  static const auto& targets = *new std::vector<double>{0, 1, 2, 0, 1, 2, 1};
  return targets;
}

// Computes all gradients of the mean loss over these rows.
template <typename T>
void ComputeGradients(Model<T>& model, const Matrix<T>& input, absl::Span<const double> targets) {
  const Loss loss;
  const Matrix<T>& outputs = model.Forward(Pass(), input);
  Matrix<T> gradient;
  LossGradient(loss, outputs, targets, static_cast<double>(input.rows()), gradient);
  SYNCGRADS_ASSERT_OK(model.Backward(gradient, [](size_t) { return absl::OkStatus(); }));
}

TEST(ModelTest, GradientsAgreeWithFiniteDifferences) {
  const auto model = MakeModel<double>(3);
  const Matrix<double> input = MakeInput<double>();
  ComputeGradients(*model, input, Targets());
  const double h = 1e-6;
  for (Parameter<double>* parameter : model->parameters()) {
    for (Eigen::Index i = 0; i < parameter->values.size(); ++i) {
      double& value = parameter->values.data()[i];
      const double kept = value;
      value = kept + h;
      const double above = SumOfLosses(Loss(), model->Forward(Pass(), input), Targets()) / kRows;
      value = kept - h;
      const double below = SumOfLosses(Loss(), model->Forward(Pass(), input), Targets()) / kRows;
      value = kept;
      EXPECT_NEAR(parameter->gradient.data()[i], (above - below) / (2 * h), 1e-8)
          << parameter->name << "[" << i << "]";
    }
  }
}

template <typename T>
class TypedModelTest : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(TypedModelTest, Types);

TYPED_TEST(TypedModelTest, GradientOfABatchIsTheMeanOfTheGradientsOfItsSamples) {
  const auto model = MakeModel<TypeParam>(3);
  const Matrix<TypeParam> input = MakeInput<TypeParam>();
  std::vector<Matrix<TypeParam>> means;
  for (Parameter<TypeParam>* parameter : model->parameters()) {
    means.push_back(Matrix<TypeParam>::Zero(parameter->values.rows(), parameter->values.cols()));
  }
  for (int row = 0; row < kRows; ++row) {
    const Matrix<TypeParam> sample = input.row(row);
    ComputeGradients(*model, sample, absl::MakeConstSpan(Targets()).subspan(row, 1));
    for (size_t i = 0; i < means.size(); ++i) means[i] += model->parameters()[i]->gradient / kRows;
  }
  ComputeGradients(*model, input, Targets());
  for (size_t i = 0; i < means.size(); ++i) {
    const auto difference = (means[i] - model->parameters()[i]->gradient).cwiseAbs().maxCoeff();
    EXPECT_LT(difference, sizeof(TypeParam) == 8 ? 1e-15 : 1e-7) << model->parameters()[i]->name;
  }
}

TYPED_TEST(TypedModelTest, ThePenaltyCountsKernelsOnly) {
  const auto model = MakeModel<TypeParam>(3);
  const auto parameters = model->parameters();
  for (Parameter<TypeParam>* parameter : parameters) parameter->values.setConstant(2);
  const auto nothing = [](size_t) { return absl::OkStatus(); };
  const auto compute = [&](const Loss& loss) {
    SYNCGRADS_EXPECT_OK(model->ComputeGradients({}, MakeInput<TypeParam>(), loss, Targets(), 1,
                                                nothing, [&](size_t i) {
                                                  model->Penalise(loss, i);
                                                  return absl::OkStatus();
                                                }));
    return *model->TakeLoss();
  };
  const double plain = compute(Loss());
  std::vector<Matrix<TypeParam>> gradients;
  for (Parameter<TypeParam>* parameter : parameters) gradients.push_back(parameter->gradient);
  Loss loss;
  loss.l2 = 0.5;
  double expected = plain;
  for (const Parameter<TypeParam>* parameter : parameters) {
    if (parameter->name.ends_with("/kernel")) {
      expected += 0.25 * 4 * static_cast<double>(parameter->values.size());
    }
  }
  EXPECT_NEAR(compute(loss), expected, 1e-6);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const double penalty = parameters[i]->name.ends_with("/kernel") ? 1 : 0;
    const Matrix<TypeParam> difference = parameters[i]->gradient - gradients[i];
    EXPECT_NEAR(difference.minCoeff(), penalty, 1e-5) << parameters[i]->name;
    EXPECT_NEAR(difference.maxCoeff(), penalty, 1e-5) << parameters[i]->name;
  }
  EXPECT_EQ(compute(Loss()), plain);  // what has been taken does not count again
}

TYPED_TEST(TypedModelTest, TheSameSeedGivesTheSameBits) {
  const auto model = MakeModel<TypeParam>(3);
  const auto again = MakeModel<TypeParam>(3);
  const auto other = MakeModel<TypeParam>(4);
  const Matrix<TypeParam> input = MakeInput<TypeParam>();
  for (const auto& one : {model.get(), again.get()}) ComputeGradients(*one, input, Targets());
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    EXPECT_EQ(model->parameters()[i]->values, again->parameters()[i]->values);
    EXPECT_EQ(model->parameters()[i]->gradient, again->parameters()[i]->gradient);
  }
  EXPECT_NE(model->parameters()[0]->values, other->parameters()[0]->values);
}

TEST(ModelInitialisationTest, KernelsAreGlorotUniformAndBiasesZero) {
  const auto dense = MakeDense<double>("dense1", 200, 100, Activation::kIdentity);
  dense->Initialise(9);
  const Matrix<double>& kernel = dense->parameters()[0]->values;
  const double limit = std::sqrt(6.0 / 300);
  EXPECT_LE(kernel.cwiseAbs().maxCoeff(), limit);
  EXPECT_GT(kernel.cwiseAbs().maxCoeff(), 0.99 * limit);
  EXPECT_NEAR(kernel.mean(), 0, 0.01 * limit);
  // The variance of a uniform distribution on [-limit, limit] is limit^2 / 3.
  EXPECT_NEAR(kernel.squaredNorm() / static_cast<double>(kernel.size()), limit * limit / 3,
              0.02 * limit * limit);
  EXPECT_EQ(dense->parameters()[1]->values.cwiseAbs().maxCoeff(), 0);
}

TEST(ModelTest, ParametersAreNamedAndShapedByTheirLayers) {
  const auto model = MakeModel<float>(3);
  ASSERT_EQ(model->parameters().size(), 8u);
  EXPECT_EQ(ToString(model->parameters()[0]->spec()), "f32[4,6]");
  EXPECT_EQ(model->parameters()[0]->name, "dense1/kernel");
  EXPECT_EQ(model->parameters()[7]->name, "dense4/bias");
  EXPECT_EQ(ToString(model->parameters()[7]->spec()), "f32[3]");
  ASSERT_EQ(model->states().size(), 2u);
  EXPECT_EQ(model->states()[0]->name, "min_max_scaling/minimum");
}

TEST(ModelTest, BackwardReportsTheLastLayerFirst) {
  const auto model = MakeModel<double>(3);
  const Matrix<double> input = MakeInput<double>();
  Matrix<double> gradient = model->Forward(Pass(), input);
  std::vector<size_t> order;
  SYNCGRADS_ASSERT_OK(model->Backward(gradient, [&](size_t i) {
    order.push_back(i);
    return absl::OkStatus();
  }));
  EXPECT_EQ(order, (std::vector<size_t>{6, 7, 4, 5, 2, 3, 0, 1}));
}

TEST(ModelTest, FrozenParametersAreNotReportedAndNothingIsComputedBeforeTheFirstTrainedOne) {
  const auto model = MakeModel<double>(3);
  const auto whole = MakeModel<double>(3);
  const Matrix<double> input = MakeInput<double>();
  ComputeGradients(*whole, input, Targets());
  // Layers 1 and 2, and the bias of layer 3.
  model->Freeze({true, true, true, true, false, true, false, false});
  ASSERT_EQ(model->frozen().size(), 5u);
  EXPECT_EQ(model->frozen()[4]->name, "dense3/bias");
  for (Parameter<double>* frozen : model->frozen()) frozen->gradient.setConstant(1e9);
  std::vector<std::string> needed, ready;
  SYNCGRADS_ASSERT_OK(model->ComputeGradients(
      Pass(), input, Loss(), Targets(), kRows,
      [&](size_t i) {
        needed.push_back(model->parameters()[i]->name);
        return absl::OkStatus();
      },
      [&](size_t i) {
        ready.push_back(model->parameters()[i]->name);
        return absl::OkStatus();
      }));
  EXPECT_EQ(needed, (std::vector<std::string>{"dense3/kernel", "dense4/kernel", "dense4/bias"}));
  EXPECT_EQ(ready, (std::vector<std::string>{"dense4/kernel", "dense4/bias", "dense3/kernel"}));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(model->parameters()[i]->gradient, whole->parameters()[i == 0 ? 4 : 5 + i]->gradient);
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(model->frozen()[i]->gradient(0, 0), 1e9) << model->frozen()[i]->name;
  }
}

TEST(ModelTest, BackwardDoesNotLookAtALayerThatIsReady) {
  const Matrix<double> input = MakeInput<double>();
  const auto model = MakeModel<double>(3);
  ComputeGradients(*model, input, Targets());
  const auto overwritten = MakeModel<double>(3);
  Matrix<double> gradient;
  LossGradient(Loss(), overwritten->Forward(Pass(), input), Targets(), kRows, gradient);
  std::vector<Matrix<double>> seen(overwritten->parameters().size());
  SYNCGRADS_ASSERT_OK(overwritten->Backward(gradient, [&](size_t i) {
    Parameter<double>& parameter = *overwritten->parameters()[i];
    seen[i] = parameter.gradient;
    parameter.values.setConstant(1e9);
    parameter.gradient.setConstant(1e9);
    return absl::OkStatus();
  }));
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], model->parameters()[i]->gradient);
}

TEST(ModelTest, BackwardStopsAtTheFirstError) {
  const auto model = MakeModel<double>(3);
  const Matrix<double> input = MakeInput<double>();
  Matrix<double> gradient = model->Forward(Pass(), input);
  int calls = 0;
  ExpectError(model->Backward(gradient,
                              [&](size_t) {
                                ++calls;
                                return absl::UnavailableError("gone");
                              }),
              absl::StatusCode::kUnavailable, {"gone"});
  EXPECT_EQ(calls, 1);
}

Matrix<double> OnHost(Layer<double>& layer, const Matrix<double>& input) {
  DeviceMatrix<double> brought(layer.device());
  brought.Bring(input);
  return layer.Forward(Pass(), brought).host();
}

TEST(MinMaxScalingTest, ScalesRangesToMinusOneToOneAndConstantsToZero) {
  MinMaxScaling<double> scaling("min_max_scaling", OneThread<double>(), Shape::Flat(3));
  scaling.SetRanges({0, -10, 5}, {4, 10, 5});
  Matrix<double> input{{0, 10, 5}, {4, -10, 5}, {1, 0, 5}};
  const Matrix<double> expected{{-1, 1, 0}, {1, -1, 0}, {-0.5, 0, 0}};
  EXPECT_EQ(OnHost(scaling, input), expected);
}

}  // namespace
}  // namespace syncgrads
