// Models that are built from the description in a job file.

#include "worker/nn/models/build.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/worker/testing/status.h"
#include "worker/base/random.h"
#include "worker/nn/cpu/cpu_device.h"
#include "worker/nn/models/named_model.h"

namespace syncgrads {
namespace {

absl::StatusOr<std::unique_ptr<Model<float>>> Build(const std::string& name, const Shape& input,
                                                    Device<float>& device) {
  v1::NamedModel named;
  named.set_name(name);
  named.set_outputs(10);
  const auto spec = ExpandNamedModel(named);
  if (!spec.ok()) return spec.status();
  return BuildModel<float>(*spec, input, CustomLayers(), device);
}

Matrix<float> RandomImages(int64_t samples, const Shape& shape) {
  RandomStream random(3, {});
  Matrix<float> images(samples, shape.size());
  for (Eigen::Index i = 0; i < images.size(); ++i) {
    images.data()[i] = static_cast<float>(2 * random.NextUniform() - 1);
  }
  return images;
}

int64_t CountParameters(const Model<float>& model) {
  int64_t count = 0;
  for (const Parameter<float>* parameter : model.parameters()) count += parameter->values.size();
  return count;
}

TEST(NamedModelTest, HaveAsManyParametersAsElsewhere) {
  CpuDevice<float> device(1);
  // The expected counts are those of torchvision's models, with 10 classes instead of 1000.
  const Shape shape = Shape::Image(3, 32, 32);
  EXPECT_EQ(CountParameters(**Build("resnet18", shape, device)), 11689512 - 990 * 513);
  EXPECT_EQ(CountParameters(**Build("resnet34", shape, device)), 21797672 - 990 * 513);
  EXPECT_EQ(CountParameters(**Build("resnet50", shape, device)), 25557032 - 990 * 2049);
  EXPECT_EQ(CountParameters(**Build("lenet", Shape::Image(1, 28, 28), device)),
            (25 + 1) * 6 + (6 * 25 + 1) * 16 + (784 + 1) * 120 + 121 * 84 + 85 * 10);
}

TEST(NamedModelTest, ResNetsNameTheirParametersAsTorchvision) {
  CpuDevice<float> device(1);
  const auto model = Build("resnet18", Shape::Image(3, 32, 32), device);
  SYNCGRADS_ASSERT_OK(model);
  std::vector<std::string> names;
  for (const Parameter<float>* one : (*model)->parameters()) {
    names.push_back(one->name + " " + ToString(one->spec()));
  }
  for (const Parameter<float>* one : (*model)->states()) {
    names.push_back(one->name + " " + ToString(one->spec()));
  }
  for (const char* name :
       {"conv1.weight f32[64,3,7,7]", "bn1.weight f32[64]", "bn1.running_mean f32[64]",
        "layer1.0.conv1.weight f32[64,64,3,3]", "layer2.0.downsample.0.weight f32[128,64,1,1]",
        "layer2.0.downsample.1.running_var f32[128]", "layer4.1.bn2.bias f32[512]",
        "fc.weight f32[10,512]", "fc.bias f32[10]"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  }
  // The model has 20 convolutions, 20 batch norms with two parameters and two states each, and "fc"
  // with two parameters.
  EXPECT_EQ(names.size(), 20u + 20u * 4u + 2u);
}

TEST(NamedModelTest, AnImageThatIsNoneIsRefusedWithItsShape) {
  CpuDevice<float> device(1);
  ExpectError(Build("resnet18", Shape::Flat(64), device), absl::StatusCode::kInvalidArgument,
              {"layer \"conv1\"", "shape 64"});
  ExpectError(Build("mlp", Shape::Image(3, 8, 8), device), absl::StatusCode::kInvalidArgument,
              {"layer \"dense1\"", "3x8x8", "flatten"});
}

TEST(BuildTest, ShapesThatDoNotFitAreNamedWithTheirLayer) {
  CpuDevice<float> device(1);
  v1::ModelSpec spec;
  v1::LayerSpec& conv = *spec.add_layers();
  conv.set_name("large");
  conv.mutable_conv2d()->set_outputs(4);
  conv.mutable_conv2d()->set_kernel_size(5);
  const auto build = [&](const Shape& shape) {
    return BuildModel<float>(spec, shape, CustomLayers(), device).status();
  };
  ExpectError(build(Shape::Image(1, 4, 8)), absl::StatusCode::kInvalidArgument,
              {"layer \"large\"", "window of 5x5", "1x4x8", "padding 0"});
  conv.mutable_conv2d()->set_padding(5);
  ExpectError(build(Shape::Image(1, 8, 8)), absl::StatusCode::kInvalidArgument,
              {"layer \"large\"", "padding is 5", "5x5"});
  conv.mutable_conv2d()->set_padding(0);
  SYNCGRADS_EXPECT_OK(build(Shape::Image(1, 5, 5)));
  v1::LayerSpec& residual = *spec.add_layers();
  residual.set_name("sum");
  *residual.mutable_residual()->add_body() = conv;
  ExpectError(build(Shape::Image(1, 12, 11)), absl::StatusCode::kInvalidArgument,
              {"layer \"sum\"", "body makes shape 4x4x3", "shortcut 4x8x7"});
  spec.mutable_layers(1)->mutable_custom()->set_kind("swish");
  ExpectError(build(Shape::Image(1, 8, 8)), absl::StatusCode::kInvalidArgument,
              {"layer \"sum\"", "unknown custom layer \"swish\""});
}

// Computes all gradients of the mean loss over these rows, in evaluation mode.
void ComputeGradients(Model<float>& model, const Matrix<float>& input,
                      absl::Span<const double> targets) {
  Matrix<float> gradient;
  LossGradient(Loss(), model.Forward(Pass(), input), targets, static_cast<double>(input.rows()),
               gradient);
  SYNCGRADS_ASSERT_OK(model.Backward(gradient, [](size_t) { return absl::OkStatus(); }));
}

TEST(ResNetTest, GradientOfABatchIsTheMeanOfItsSamplesGradientsInTestMode) {
  CpuDevice<float> device(2);
  const Shape shape = Shape::Image(3, 64, 64);
  const auto built = Build("resnet34", shape, device);
  SYNCGRADS_ASSERT_OK(built);
  Model<float>& model = **built;
  model.Initialise(1);
  const Matrix<float> images = RandomImages(3, shape);
  const std::vector<double> targets = {1, 7, 4};
  // Running statistics as after training. With the initial ones, the activations grow from block to
  // block.
  Pass training;
  training.training = true;
  for (int i = 0; i < 30; ++i) model.Forward(training, images);
  ComputeGradients(model, images, targets);
  std::vector<Matrix<float>> batch, means;
  for (const Parameter<float>* parameter : model.parameters()) {
    batch.push_back(parameter->gradient);
    means.push_back(Matrix<float>::Zero(parameter->gradient.rows(), parameter->gradient.cols()));
  }
  for (int sample = 0; sample < 3; ++sample) {
    ComputeGradients(model, images.row(sample), absl::MakeConstSpan(targets).subspan(sample, 1));
    for (size_t i = 0; i < means.size(); ++i) means[i] += model.parameters()[i]->gradient / 3;
  }
  for (size_t i = 0; i < means.size(); ++i) {
    EXPECT_GT(batch[i].cwiseAbs().maxCoeff(), 0) << model.parameters()[i]->name;
    EXPECT_LT((batch[i] - means[i]).cwiseAbs().maxCoeff(),
              1e-4f * std::max(1.0f, batch[i].cwiseAbs().maxCoeff()))
        << model.parameters()[i]->name;
  }
}

// Sets each number of the model to a function of its array's name and its place, which other
// programs can compute. Kernels are He-uniform; biases and running means are in [-0.5, 0.5);
// factors and running variances are in [0.5, 1.5).
void SetNumbers(Model<float>& model) {
  const auto set = [](Parameter<float>& array) {
    RandomStream random(1, {HashBytes(array.name)});
    const bool is_kernel = array.shape.size() > 1;
    const bool is_addend =
        absl::EndsWith(array.name, ".bias") || absl::EndsWith(array.name, ".running_mean");
    const double limit = std::sqrt(6.0 / static_cast<double>(array.values.cols()));
    for (Eigen::Index i = 0; i < array.values.size(); ++i) {
      const double number = random.NextUniform();
      array.values.data()[i] = static_cast<float>(is_kernel ? limit * (2 * number - 1)
                                                            : number + (is_addend ? -0.5 : 0.5));
    }
  };
  for (Parameter<float>* parameter : model.parameters()) set(*parameter);
  for (Parameter<float>* state : model.states()) set(*state);
  SYNCGRADS_ASSERT_OK(model.Upload());
}

// The expected outputs are those of the same networks in PyTorch 1.13, in float64, with the numbers
// of SetNumbers and the image of RandomImages: resnet_outputs.py, in this folder, prints them.
TEST(ResNetTest, TheirOutputsAreThoseOfPyTorch) {
  CpuDevice<float> device(1);
  const Shape shape = Shape::Image(3, 64, 48);
  const Matrix<float> image = RandomImages(1, shape);
  const auto expect_outputs = [&](const std::string& name, const Matrix<double>& expected) {
    const auto model = Build(name, shape, device);
    SYNCGRADS_ASSERT_OK(model);
    SetNumbers(**model);
    const Matrix<double> outputs = (*model)->Forward(Pass(), image).cast<double>();
    ASSERT_EQ(outputs.cols(), expected.cols()) << name;
    // Rounding to float32 changes an output by up to two millionths of the largest.
    EXPECT_LT((outputs - expected).cwiseAbs().maxCoeff(), 1e-5 * expected.cwiseAbs().maxCoeff())
        << name << ": " << outputs;
  };
  expect_outputs("resnet18",
                 Matrix<double>{{35.36546, 10.62504, -41.30527, -1.006258, -33.87056, -0.6770565,
                                 9.343417, -38.32819, -0.887189, 31.72803}});
  expect_outputs("resnet34", Matrix<double>{{171.4316, 87.65079, -543.6703, -400.3964, -179.1282,
                                             152.3974, -7.84532, -162.0928, 269.2523, 550.4534}});
  expect_outputs("resnet50", Matrix<double>{{-2081.116, -771.1159, 2155.224, -90.95121, -9.031684,
                                             1252.402, -1500.404, 2901.41, -82.51752, 920.0571}});
}

TEST(ResNetTest, BackwardHandsOutEachParameterOnceFromTheLastLayerToTheFirst) {
  CpuDevice<float> device(1);
  const Shape shape = Shape::Image(3, 32, 32);
  const auto built = Build("resnet18", shape, device);
  SYNCGRADS_ASSERT_OK(built);
  Model<float>& model = **built;
  model.Initialise(1);
  const Matrix<float> images = RandomImages(1, shape);
  Matrix<float> gradient = model.Forward(Pass(), images);
  std::vector<std::string> order;
  SYNCGRADS_ASSERT_OK(model.Backward(gradient, [&](size_t i) {
    order.push_back(model.parameters()[i]->name);
    return absl::OkStatus();
  }));
  ASSERT_EQ(order.size(), model.parameters().size());
  EXPECT_EQ(order[0], "fc.weight");
  // The gradients inside a block are reported one by one too, so that each can be sent when it is
  // ready.
  EXPECT_EQ(order[2], "layer4.1.bn2.weight");
  EXPECT_EQ(order[4], "layer4.1.conv2.weight");
  EXPECT_EQ(order.back(), "conv1.weight");
  std::sort(order.begin(), order.end());
  EXPECT_EQ(std::unique(order.begin(), order.end()), order.end());
}

// A custom layer: x * x.
template <typename T>
class Square : public Layer<T> {
 public:
  static absl::StatusOr<std::unique_ptr<Layer<T>>> Create(const CustomLayerOptions& options,
                                                          Device<T>& device) {
    return std::make_unique<Square>(options, device);
  }
  Square(const CustomLayerOptions& options, Device<T>& device)
      : Layer<T>(options.name, device, options.input, options.input),
        factor_(static_cast<T>(options.settings.at("factor"))),
        output_(device) {}

  const DeviceMatrix<T>& Forward(const Pass&, const DeviceMatrix<T>& input) override {
    output_.Resize(input.rows(), input.cols());
    output_.host() = factor_ * input.host().cwiseProduct(input.host());
    return output_;
  }
  void Backward(const DeviceMatrix<T>& input, DeviceMatrix<T>& output_gradient,
                DeviceMatrix<T>* input_gradient) override {
    if (input_gradient == nullptr) return;
    input_gradient->Resize(input.rows(), input.cols());
    input_gradient->host() = 2 * factor_ * input.host().cwiseProduct(output_gradient.host());
  }

 private:
  const T factor_;
  DeviceMatrix<T> output_;
};

TEST(CustomLayersTest, ALayerOfOnesOwnTakesItsPlaceInAChain) {
  CustomLayers custom;
  custom.Add<Square>("square");
  v1::ModelSpec spec;
  v1::LayerSpec& layer = *spec.add_layers();
  layer.set_name("square1");
  layer.mutable_custom()->set_kind("square");
  (*layer.mutable_custom()->mutable_settings())["factor"] = 3;
  CpuDevice<float> device(1);
  const auto model = BuildModel<float>(spec, Shape::Flat(2), custom, device);
  SYNCGRADS_ASSERT_OK(model);
  const Matrix<float> input{{1, 2}};
  EXPECT_EQ((*model)->Forward(Pass(), input), (Matrix<float>{{3, 12}}));
  spec.mutable_layers(0)->mutable_custom()->set_kind("cube");
  ExpectError(BuildModel<float>(spec, Shape::Flat(2), custom, device),
              absl::StatusCode::kInvalidArgument,
              {"\"square1\"", "\"cube\"", "this program has square"});
}

}  // namespace
}  // namespace syncgrads
